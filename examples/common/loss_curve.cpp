// SPDX-License-Identifier: MIT
#include "loss_curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace examples {

namespace {

// The position of a value on an axis; NaN if it has none.
double place_of(double value, Scale scale) {
  if (scale == Scale::Linear) return value;
  if (value <= 0) return std::numeric_limits<double>::quiet_NaN();
  return scale == Scale::Log2 ? std::log2(value) : std::log10(value);
}
double value_at(double place, Scale scale) {
  if (scale == Scale::Linear) return place;
  return scale == Scale::Log2 ? std::exp2(place) : std::pow(10, place);
}

// The points to draw, as positions; points without a position are left out.
std::vector<Curve> placed(const std::vector<Curve>& curves, const Axes& axes) {
  std::vector<Curve> result;
  for (const Curve& curve : curves) {
    result.push_back({curve.name, {}});
    for (const Curve::Point& point : curve.points) {
      const Curve::Point place{place_of(point.x, axes.x), place_of(point.y, axes.y)};
      if (std::isfinite(place.x) && std::isfinite(place.y)) result.back().points.push_back(place);
    }
  }
  return result;
}

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// 1, 2 or 5 times a power of ten: the largest that cuts `range` into at least `parts`.
double round_step(double range, int parts) {
  const double rough = range / parts, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {5.0, 2.0}) {
    if (factor * power <= rough) return factor * power;
  }
  return power;
}

// The extent of the data; width and height are positive.
struct Frame {
  double left = std::numeric_limits<double>::infinity(), right = -left, low = left, high = -left;

  explicit Frame(const std::vector<Curve>& curves) {
    for (const Curve& curve : curves) {
      for (const Curve::Point& point : curve.points) {
        left = std::min(left, point.x);
        right = std::max(right, point.x);
        low = std::min(low, point.y);
        high = std::max(high, point.y);
      }
    }
    if (right - left <= 0) right = left + 1;
    if (high - low <= 0) high = low + 1;
  }
  bool empty() const { return !std::isfinite(left); }
  double across(double x) const { return (x - left) / (right - left); }  // 0 at the left, 1 at the right
  double down(double y) const { return (high - y) / (high - low); }      // 0 at the top, 1 at the bottom
};

// Places between low and high for grid lines, at round values.
std::vector<double> ticks(double low, double high, Scale scale) {
  std::vector<double> places;
  const auto add = [&](double place) {
    if (low - 1e-9 <= place && place <= high + 1e-9) places.push_back(place);
  };
  if (scale == Scale::Linear || high - low < 1) {  // within one power, the round values themselves
    const double first = value_at(low, scale), last = value_at(high, scale), step = round_step(last - first, 4);
    // Counted, since sums of a step are not round: 0 would be 1e-17. Adding 0 makes 0 of -0, which shows its sign.
    for (double i = std::ceil(first / step - 1e-9) + 0.0; i * step <= last + 1e-9 * step; ++i) {
      add(place_of(i * step, scale));
    }
    return places;
  }
  const double step = std::max(1.0, std::ceil((high - low) / 8));
  for (double place = std::ceil(low - 1e-9); place <= high + 1e-9; place += step) {
    add(place);
    if (scale == Scale::Log10 && high - low < 3) {
      add(place + std::log10(2.0));
      add(place + std::log10(5.0));
    }
  }
  return places;
}

// The positions of the names of the curves: in lines, as many in each as fit.
std::vector<Curve::Point> legend_places(const std::vector<Curve>& curves, double left, double top, double width,
                                        double line_height) {
  constexpr double letter = 7.2, gap = 22;  // about what a letter takes, and between two names
  std::vector<Curve::Point> places;
  Curve::Point next{left, top};
  for (const Curve& curve : curves) {
    const double room = letter * static_cast<double>(curve.name.size());
    if (next.x > left && next.x + room > left + width) next = {left, next.y + line_height};
    places.push_back(next);
    next.x += room + gap;
  }
  return places;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '&')
      escaped += "&amp;";
    else
      escaped += c;
  }
  return escaped;
}

}  // namespace

std::vector<Curve::Point> group_means(const std::vector<double>& values, std::size_t group) {
  std::vector<Curve::Point> points;
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    const std::size_t end = std::min(values.size(), begin + group);
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    points.push_back({static_cast<double>(end), sum / static_cast<double>(end - begin)});
  }
  return points;
}

std::string draw_curves(const std::vector<Curve>& values, std::size_t width, std::size_t height, const Axes& axes) {
  constexpr std::string_view marks = ".o+x*#";
  const std::vector<Curve> curves = placed(values, axes);
  const Frame frame(curves);
  if (frame.empty()) return {};
  std::vector<std::string> rows(height, std::string(width, ' '));
  std::string legend;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const char mark = marks[c % marks.size()];
    legend.append(legend.empty() ? "" : "   ").append(1, mark).append(1, ' ').append(curves[c].name);
    const auto cell = [](double part, std::size_t cells) {
      return static_cast<std::size_t>(std::lround(part * static_cast<double>(cells - 1)));
    };
    const Curve::Point* before = nullptr;
    for (const Curve::Point& point : curves[c].points) {
      const std::size_t column = cell(frame.across(point.x), width);
      const std::size_t first = before ? std::min(column, cell(frame.across(before->x), width) + 1) : column;
      for (std::size_t at = first; at <= column; ++at) {
        double y = point.y;
        if (before && at < column) {
          const double x =
              frame.left + static_cast<double>(at) / static_cast<double>(width - 1) * (frame.right - frame.left);
          y = before->y + (point.y - before->y) * std::clamp((x - before->x) / (point.x - before->x), 0.0, 1.0);
        }
        rows[cell(frame.down(y), height)][at] = mark;
      }
      before = &point;
    }
  }
  std::string text;
  for (std::size_t r = 0; r < height; ++r) {
    const bool labeled = r % 3 == 0 || r + 1 == height;
    const double y = frame.high - static_cast<double>(r) / static_cast<double>(height - 1) * (frame.high - frame.low);
    const char* format = axes.y == Scale::Linear ? "%8.3f |" : "%8.3g |";
    text += labeled ? number(format, value_at(y, axes.y)) : std::string(8, ' ') + " |";
    rows[r].erase(rows[r].find_last_not_of(' ') + 1);
    text += rows[r] + "\n";
  }
  const std::string left = number("%g", value_at(frame.left, axes.x));
  const std::string right = number("%g", value_at(frame.right, axes.x));
  const std::size_t gap = width > left.size() + right.size() ? width - left.size() - right.size() : 1;
  text += std::string(9, ' ') + "+" + std::string(width, '-') + "\n";
  text += std::string(10, ' ') + left + std::string(gap, ' ') + right + "\n";
  return text + std::string(10, ' ') + legend + "\n";
}

std::string curves_svg(const std::vector<Curve>& values, const std::string& title, const std::string& x_label,
                       const std::string& y_label, const Axes& axes) {
  // Of about the same contrast on white and on black.
  constexpr std::array<std::string_view, 6> colors{"#2f7fe6", "#d9661f", "#2f9e58", "#9062e8", "#d0418f", "#77808a"};
  constexpr double left = 60, width = 560, height = 300, line_height = 18;
  constexpr std::size_t most_dots = 16;  // points of a curve that are worth a dot each
  const std::vector<Curve> curves = placed(values, axes);
  const Frame frame(curves);
  const std::vector<Curve::Point> entries = legend_places(curves, left, 42, width, line_height);
  const double top = entries.empty() ? 40 : entries.back().y + line_height;
  const std::string total = number("%.0f", top + height + 60), middle = number("%.0f", top + height / 2);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 " + total +
                    "\" width=\"640\" height=\"" + total +
                    "\" "
                    "font-family=\"sans-serif\" font-size=\"12\" class=\"curves\">\n<style>.curves .paper{fill:#ffffff}"
                    ".curves .ink{fill:#1f2328}.curves .grid{stroke:#d8dee4}@media(prefers-color-scheme:dark){"
                    ".curves .paper{fill:#12161c}.curves .ink{fill:#e3e8ee}.curves .grid{stroke:#343b44}}</style>\n"
                    "<rect width=\"640\" height=\"" +
                    total + "\" class=\"paper\"/>\n";
  const auto put_text = [&](double x, double y, std::string_view anchor, std::string_view text,
                            std::string_view more = " class=\"ink\"") {
    svg.append("<text x=\"").append(number("%.1f", x)).append("\" y=\"").append(number("%.1f", y));
    svg.append("\" text-anchor=\"").append(anchor).append("\"").append(more).append(">");
    svg.append(escape(text)).append("</text>\n");
  };
  put_text(left, 22, "start", title, " class=\"ink\" font-size=\"15\"");
  put_text(left + width / 2, top + height + 46, "middle", x_label);
  put_text(16, top + height / 2, "middle", y_label, " class=\"ink\" transform=\"rotate(-90 16 " + middle + ")\"");
  if (!frame.empty()) {
    const auto x_of = [&](double x) { return left + frame.across(x) * width; };
    const auto y_of = [&](double y) { return top + frame.down(y) * height; };
    const auto line = [&](double x1, double y1, double x2, double y2) {
      svg += "<path d=\"M" + number("%.1f", x1) + " " + number("%.1f", y1) + "L" + number("%.1f", x2) + " " +
             number("%.1f", y2) + "\" class=\"grid\"/>\n";
    };
    for (const double y : ticks(frame.low, frame.high, axes.y)) {
      line(left, y_of(y), left + width, y_of(y));
      put_text(left - 6, y_of(y) + 4, "end", number("%.4g", value_at(y, axes.y)));
    }
    for (const double x : ticks(frame.left, frame.right, axes.x)) {
      line(x_of(x), top, x_of(x), top + height);
      put_text(x_of(x), top + height + 18, "middle", number("%.6g", value_at(x, axes.x)));
    }
    for (std::size_t c = 0; c < curves.size(); ++c) {
      const std::string color(colors[c % colors.size()]);
      std::string points;
      for (const Curve::Point& point : curves[c].points) {
        points += number("%.1f,", x_of(point.x)) + number("%.1f ", y_of(point.y));
        if (curves[c].points.size() > most_dots) continue;
        svg += "<circle cx=\"" + number("%.1f", x_of(point.x)) + "\" cy=\"" + number("%.1f", y_of(point.y)) +
               "\" r=\"2.5\" fill=\"" + color + "\"/>\n";
      }
      svg += "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"" + color + "\" points=\"" + points + "\"/>\n";
      put_text(entries[c].x, entries[c].y, "start", curves[c].name, " fill=\"" + color + "\" font-weight=\"600\"");
    }
  }
  return svg + "</svg>\n";
}

void save_curves(const std::string& file, const std::vector<Curve>& curves, const std::string& title,
                 const std::string& x_label, const std::string& y_label) {
  std::ofstream stream(file, std::ios::binary);
  stream << curves_svg(curves, title, x_label, y_label);
  if (!stream.flush()) throw std::runtime_error("cannot write " + file);
}

}  // namespace examples
