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

bool is_drawn(const Curve::Point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

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

// What the picture has to hold. Never of no width or height.
struct Frame {
  double left = std::numeric_limits<double>::infinity(), right = -left, low = left, high = -left;

  explicit Frame(const std::vector<Curve>& curves) {
    for (const Curve& curve : curves) {
      for (const Curve::Point& point : curve.points) {
        if (!is_drawn(point)) continue;
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

std::string draw_curves(const std::vector<Curve>& curves, std::size_t width, std::size_t height) {
  constexpr std::string_view marks = ".o+x";
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
      if (!is_drawn(point)) continue;
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
    const bool labelled = r % 3 == 0 || r + 1 == height;
    const double y = frame.high - static_cast<double>(r) / static_cast<double>(height - 1) * (frame.high - frame.low);
    text += labelled ? number("%8.3f |", y) : std::string(8, ' ') + " |";
    rows[r].erase(rows[r].find_last_not_of(' ') + 1);
    text += rows[r] + "\n";
  }
  const std::string left = number("%g", frame.left), right = number("%g", frame.right);
  const std::size_t gap = width > left.size() + right.size() ? width - left.size() - right.size() : 1;
  text += std::string(9, ' ') + "+" + std::string(width, '-') + "\n";
  text += std::string(10, ' ') + left + std::string(gap, ' ') + right + "\n";
  return text + std::string(10, ' ') + legend + "\n";
}

std::string curves_svg(const std::vector<Curve>& curves, const std::string& title, const std::string& x_label,
                       const std::string& y_label) {
  constexpr std::array<std::string_view, 6> colours{"#1f6feb", "#d1570c", "#2d8a4e", "#8250df", "#b5267b", "#57606a"};
  constexpr double left = 60, top = 40, width = 560, height = 300;
  const Frame frame(curves);
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" width=\"640\" height=\"400\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"640\" height=\"400\" fill=\"#ffffff\"/>\n";
  const auto put_text = [&](double x, double y, std::string_view anchor, std::string_view text,
                            std::string_view more = "") {
    svg.append("<text x=\"").append(number("%.1f", x)).append("\" y=\"").append(number("%.1f", y));
    svg.append("\" text-anchor=\"").append(anchor).append("\"").append(more).append(">");
    svg.append(escape(text)).append("</text>\n");
  };
  put_text(left, 22, "start", title, " font-size=\"15\"");
  put_text(left + width / 2, 390, "middle", x_label);
  put_text(16, top + height / 2, "middle", y_label, " transform=\"rotate(-90 16 190)\"");
  if (!frame.empty()) {
    const auto x_of = [&](double x) { return left + frame.across(x) * width; };
    const auto y_of = [&](double y) { return top + frame.down(y) * height; };
    const auto line = [&](double x1, double y1, double x2, double y2) {
      svg += "<path d=\"M" + number("%.1f", x1) + " " + number("%.1f", y1) + "L" + number("%.1f", x2) + " " +
             number("%.1f", y2) + "\" stroke=\"#dddddd\"/>\n";
    };
    const double y_step = round_step(frame.high - frame.low, 4), x_step = round_step(frame.right - frame.left, 4);
    for (double y = std::ceil(frame.low / y_step) * y_step; y <= frame.high; y += y_step) {
      line(left, y_of(y), left + width, y_of(y));
      put_text(left - 6, y_of(y) + 4, "end", number("%.4g", y));
    }
    for (double x = std::ceil(frame.left / x_step) * x_step; x <= frame.right; x += x_step) {
      line(x_of(x), top, x_of(x), top + height);
      put_text(x_of(x), top + height + 18, "middle", number("%.6g", x));
    }
    for (std::size_t c = 0; c < curves.size(); ++c) {
      const std::string colour(colours[c % colours.size()]);
      std::string points;
      for (const Curve::Point& point : curves[c].points) {
        if (is_drawn(point)) points += number("%.1f,", x_of(point.x)) + number("%.1f ", y_of(point.y));
      }
      svg += "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"" + colour + "\" points=\"" + points + "\"/>\n";
      put_text(left + width - 8, top + 18 + 16 * static_cast<double>(c), "end", curves[c].name,
               " fill=\"" + colour + "\"");
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
