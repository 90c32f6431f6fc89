// SPDX-License-Identifier: MIT
#include "claim.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>

#include <heed/core/config.hpp>
#include <heed/version.hpp>

#include "common/files.hpp"

namespace article {

namespace {

constexpr int kSkipped = 77;  // as CTest is told

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '&')
      escaped += "&amp;";
    else
      escaped += c;
  }
  return escaped;
}

// How many columns a terminal gives a text: continuation bytes of UTF-8 take none.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

std::string wrapped(std::string_view text, std::size_t width = 100) {
  std::string result;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (column > 0 && column + 1 + width_of(word) > width) {
      result += '\n';
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width_of(word);
    at = end + 1;
  }
  return result + "\n";
}

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Held:
      return "held";
    case Verdict::Partly:
      return "held in part";
    case Verdict::Contradicted:
      break;
  }
  return "did not hold";
}

const char* class_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Held:
      return "held";
    case Verdict::Partly:
      return "partly";
    case Verdict::Contradicted:
      break;
  }
  return "contradicted";
}

std::string text_of(const Range& range) {
  if (std::isinf(range.high)) return "at least " + format("%.4g", range.low);
  if (std::isinf(range.low)) return "at most " + format("%.4g", range.high);
  return format("%.4g", range.low) + " to " + format("%.4g", range.high);
}

void write_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  if (!stream.flush()) throw std::runtime_error("cannot write " + examples::in_quotes(file));
}

std::string summary_row(const Claim& claim, std::string_view style, std::string_view verdict, std::string_view key) {
  std::string row = "<tr class=\"" + std::string(style) + "\"><td><a href=\"#" + claim.name + "\">" +
                    escape(claim.claim) + "</a></td><td class=\"verdict\">" + std::string(verdict) + "</td><td>" +
                    escape(key) + "</td></tr>\n";
  return row;
}

// The file of a picture: NAME.svg, NAME-2.svg, ...
std::string picture_file(const std::string& name, std::size_t number) {
  return number == 0 ? name + ".svg" : name + "-" + std::to_string(number + 1) + ".svg";
}

std::string version() {
  return std::to_string(HEED_VERSION_MAJOR) + "." + std::to_string(HEED_VERSION_MINOR) + "." +
         std::to_string(HEED_VERSION_PATCH);
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != line.npos) return line.substr(colon + 2);
  }
  return "a processor that does not tell its name";
}

constexpr std::string_view kStyle = R"(
:root { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --held: #1a7f37; --partly: #8a6100;
  --not: #b5367a; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161c; --ink: #e3e8ee; --soft: #9198a1; --line: #343b44; --held: #3fb950; --partly: #d8a632;
    --not: #f778ba; }
}
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin-bottom: .3rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .4rem; border-top: 1px solid var(--line); padding-top: 1.2rem; }
code, .source { font-family: ui-monospace, monospace; font-size: .85em; color: var(--soft); }
a { color: inherit; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .92rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
caption { text-align: left; white-space: nowrap; font-weight: 600; padding-bottom: .3rem; }
th, td { text-align: left; padding: .28rem .9rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.number, th.number { text-align: right; }
.verdict { font-weight: 600; white-space: nowrap; }
.held .verdict { color: var(--held); }
.partly .verdict { color: var(--partly); }
.contradicted .verdict, .failed { color: var(--not); }
svg.curves { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
details { color: var(--soft); font-size: .9rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; color: var(--soft); font-size: .9rem; }
)";

}  // namespace

std::string format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string format(const char* format, std::initializer_list<double> values) {
  std::string_view text = format;
  std::string result;
  const double* next = values.begin();
  while (!text.empty()) {
    const std::size_t percent = std::min(text.find('%'), text.size());
    result += text.substr(0, percent);
    text.remove_prefix(percent);
    if (text.empty()) break;
    const bool is_place = text.substr(0, 2) != "%%";
    const std::size_t size = is_place ? std::min(text.find_first_of("efg"), text.size() - 1) + 1 : 2;
    if (is_place && next == values.end()) throw std::logic_error("format: there are fewer numbers than places");
    result += is_place ? article::format(std::string(text.substr(0, size)).c_str(), *next++) : "%";
    text.remove_prefix(size);
  }
  return result;
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const std::string& column : columns_) widths.push_back(width_of(column));
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < std::min(row.size(), widths.size()); ++c) {
      widths[c] = std::max(widths[c], width_of(row[c].text));
    }
  }
  const auto is_number = [&](std::size_t c) { return !rows_.empty() && c < rows_[0].size() && rows_[0][c].is_number; };
  std::string text = title_ + "\n";
  const auto add = [&](std::size_t c, const std::string& cell) {
    text += "  " + padded(cell, widths[c], is_number(c));
  };
  for (std::size_t c = 0; c < columns_.size(); ++c) add(c, columns_[c]);
  text += "\n";
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < std::min(row.size(), widths.size()); ++c) add(c, row[c].text);
    text += "\n";
  }
  return text;
}

std::string Table::html() const {
  const auto style = [&](std::size_t c) {
    return !rows_.empty() && c < rows_[0].size() && rows_[0][c].is_number ? " class=\"number\">" : ">";
  };
  std::string html = "<div class=\"scroll\"><table><caption>" + escape(title_) + "</caption>\n<tr>";
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    html.append("<th").append(style(c)).append(escape(columns_[c])).append("</th>");
  }
  html += "</tr>\n";
  for (const auto& row : rows_) {
    html += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) {
      html.append("<td").append(style(c)).append(escape(row[c].text)).append("</td>");
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

bool Report::as_expected() const {
  return std::all_of(checks_.begin(), checks_.end(),
                     [](const Check& check) { return check.range.contains(check.value); });
}

std::vector<std::string> Report::pictures() const {
  std::vector<std::string> svgs;
  for (const auto& part : parts_) {
    if (const auto* picture = std::get_if<Picture>(&part)) svgs.push_back(picture->svg());
  }
  return svgs;
}

std::string Report::text_of(const Claim& claim) const {
  std::string text = claim.name + "\n" + wrapped("Claim: " + claim.claim) + "\n";
  for (const auto& part : parts_) {
    if (const auto* paragraph = std::get_if<Paragraph>(&part)) {
      text += wrapped(paragraph->text);
    } else if (const auto* table = std::get_if<Table>(&part)) {
      text += table->text();
    } else {
      const auto& picture = std::get<Picture>(part);
      text += picture.title + ": " + picture.y_label + " over " + picture.x_label + "\n";
      text += examples::draw_curves(picture.curves, 64, 12, picture.axes);
    }
    text += "\n";
  }
  for (const Check& check : checks_) {
    text += std::string(check.range.contains(check.value) ? "as expected" : "NOT EXPECTED") + ": " + check.what +
            " = " + format("%.4g", check.value) + " (" + article::text_of(check.range) + ")\n";
  }
  return text + "\n" + claim.name + ": the claim " + word_of(verdict_) + ": " + key_figure_ + "\n";
}

std::string Report::html_of(const Claim& claim) const {
  std::string html = summary_row(claim, class_of(verdict_), word_of(verdict_), key_figure_);
  html += "<section id=\"" + claim.name + "\" class=\"" + class_of(verdict_) + "\">\n<h2>" + escape(claim.claim) +
          "</h2>\n<p><span class=\"verdict\">The claim " + word_of(verdict_) + ":</span> " + escape(key_figure_) +
          "<br><span class=\"source\">examples/article/" + claim.name + ".cpp" +
          (quick_ ? " --quick: reduced settings" : "") + "</span></p>\n";
  for (const auto& part : parts_) {
    if (const auto* paragraph = std::get_if<Paragraph>(&part))
      html += "<p>" + escape(paragraph->text) + "</p>\n";
    else if (const auto* table = std::get_if<Table>(&part))
      html += table->html();
    else
      html += std::get<Picture>(part).svg();
  }
  html += std::string("<details") + (as_expected() ? "" : " open") + "><summary>what the test of this program expects" +
          "</summary>\n<ul>\n";
  for (const Check& check : checks_) {
    const bool fine = check.range.contains(check.value);
    html += std::string("<li") + (fine ? ">" : " class=\"failed\">") + escape(check.what) + " = " +
            format("%.4g", check.value) + ", expected " + article::text_of(check.range) +
            (fine ? "" : ": not so here") + "</li>\n";
  }
  return html + "</ul></details>\n</section>\n";
}

std::filesystem::path text_directory(const std::string& name) {
  const std::filesystem::path directory = examples::cache_directory() / name;
  if (!std::filesystem::is_directory(directory)) {
    throw Skipped("the text '" + name + "' is not there: examples/common/fetch_text.sh " + name + " fetches it");
  }
  return directory;
}

int run(int argc, char** argv, const Claim& claim, const std::function<void(Report&)>& measure) {
  try {
    bool quick = false;
    std::filesystem::path directory = ".";
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      if (argument == "--quick") {
        quick = true;
      } else if (argument == "--out" && i + 1 < argc) {
        directory = argv[++i];
      } else {
        const bool asked = argument == "--help" || argument == "-h";
        std::fprintf(asked ? stdout : stderr, "%susage: %s [--quick] [--out DIR]\n",
                     wrapped("Measures: " + claim.claim).c_str(), claim.name.c_str());
        return asked ? 0 : 1;
      }
    }
    std::filesystem::create_directories(directory);
    const std::filesystem::path page = directory / (claim.name + ".html");
    std::filesystem::remove(page);
    const auto start = std::chrono::steady_clock::now();
    Report report(quick);
    try {
      measure(report);
    } catch (const Skipped& reason) {
      write_file(page, summary_row(claim, "skipped", "not measured", reason.what()) + "<section id=\"" + claim.name +
                           "\"></section>\n");
      std::printf("%s: skipped: %s\n", claim.name.c_str(), reason.what());
      return kSkipped;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    report.text("Measured in " + format("%.1f", seconds.count()) + " seconds.");
    write_file(page, report.html_of(claim));
    const std::vector<std::string> pictures = report.pictures();
    for (std::size_t i = 0; i < pictures.size(); ++i) write_file(directory / picture_file(claim.name, i), pictures[i]);
    std::fputs(report.text_of(claim).c_str(), stdout);
    return report.as_expected() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", claim.name.c_str(), error.what());
    return 1;
  }
}

void write_page(const std::filesystem::path& directory, const std::filesystem::path& page,
                const std::vector<std::string>& order) {
  std::vector<std::string> names;
  std::set<std::string> others;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".html" && entry.path().filename() != page.filename()) {
      others.insert(entry.path().stem().string());
    }
  }
  for (const std::string& name : order) {
    if (others.erase(name) > 0) names.push_back(name);
  }
  names.insert(names.end(), others.begin(), others.end());

  std::string rows, sections;
  for (const std::string& name : names) {
    const std::string fragment = examples::read_file(directory / (name + ".html"));
    const std::size_t end = fragment.find('\n') + 1;
    rows += fragment.substr(0, end);
    sections += fragment.substr(end);
  }
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" ";
  html += "content=\"width=device-width, initial-scale=1\">\n<title>Attention: the claims, measured</title>\n<style>";
  html += kStyle;
  html +=
      "</style>\n</head>\n<body>\n<h1>Attention: the claims, measured</h1>\n<p>What articles say about attention, "
      "measured by small programs; their sources are short and meant to be read and changed. A claim that the "
      "measurements don't bear out is reported as such.</p>\n<div class=\"scroll\"><table>\n<tr><th>claim</th>"
      "<th>on these measurements</th><th>what was found</th></tr>\n";
  html += rows + "</table></div>\n" + sections;
  html += "<footer>heed " + version() + ", instruction set " + heed::isa() +
          "; compiled by " HEED_ARTICLE_COMPILER " with " HEED_ARTICLE_FLAGS "; " + escape(processor()) + ", " +
          std::to_string(std::thread::hardware_concurrency()) + " threads.</footer>\n</body>\n</html>\n";
  write_file(page, html);
}

}  // namespace article
