// SPDX-License-Identifier: MIT
// A claim, measured: what each program of this directory consists of.
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/loss_curve.hpp"

namespace article {

struct Claim {
  std::string name;   // of the program, and of its files
  std::string claim;  // one sentence
};

// printf with one number.
std::string format(const char* format, double value);

// The same with one after the other: format("%.1f of %.0f", {1.5, 2}).
std::string format(const char* format, std::initializer_list<double> values);

// The values that a measurement may have.
struct Range {
  double low, high;
  bool contains(double value) const { return low <= value && value <= high; }
};
inline Range between(double low, double high) { return {low, high}; }
inline Range at_least(double low) { return {low, std::numeric_limits<double>::infinity()}; }
inline Range at_most(double high) { return {-std::numeric_limits<double>::infinity(), high}; }

// One cell of a table: a text, or a number with four digits that count.
struct Cell {
  std::string text;
  bool is_number = false;

  Cell(std::string value) : text(std::move(value)) {}
  Cell(const char* value) : text(value) {}
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  Cell(Number value)
      : text(format(std::is_integral_v<Number> ? "%.0f" : "%.4g", static_cast<double>(value))), is_number(true) {}
};

class Table {
 public:
  Table(std::string title, std::vector<std::string> columns) : title_(std::move(title)), columns_(std::move(columns)) {}
  // A row may be shorter than the columns are many.
  Table& row(std::vector<Cell> cells) {
    rows_.push_back(std::move(cells));
    return *this;
  }
  std::string text() const;
  std::string html() const;

 private:
  std::string title_;
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// The verdict on a claim.
enum class Verdict { Held, Partly, Contradicted };

// The findings of a program, in the order of its output.
class Report {
 public:
  explicit Report(bool quick) : quick_(quick) {}

  // True in tests, which want only the direction, within seconds.
  bool quick() const { return quick_; }
  // full, or the reduced setting of the tests.
  template <class Setting>
  Setting pick(Setting full, Setting reduced) const {
    return quick_ ? reduced : full;
  }

  // A paragraph that describes a measurement or its result.
  void text(std::string paragraph) { parts_.emplace_back(Paragraph{std::move(paragraph)}); }
  // Empty; stays where it is, so that rows can be added later.
  Table& table(std::string title, std::vector<std::string> columns) {
    return std::get<Table>(parts_.emplace_back(Table(std::move(title), std::move(columns))));
  }
  void curves(std::string title, std::vector<examples::Curve> curves, std::string x_label, std::string y_label,
              examples::Axes axes = {}) {
    parts_.emplace_back(Picture{std::move(title), std::move(x_label), std::move(y_label), std::move(curves), axes});
  }
  // A finding that every machine must confirm: the direction of the claim, or of its opposite, with a margin. Returns
  // true if the value is in the range; otherwise the program fails.
  bool expect(std::string what, double value, Range range) {
    checks_.push_back({std::move(what), value, range});
    return range.contains(value);
  }
  // Last: whether the claim held here, and the figure that says so, in a few words.
  void verdict(Verdict verdict, std::string key_figure) {
    verdict_ = verdict;
    key_figure_ = std::move(key_figure);
  }
  void verdict(bool held, std::string key_figure) {
    verdict(held ? Verdict::Held : Verdict::Contradicted, std::move(key_figure));
  }

  bool as_expected() const;
  // For a terminal.
  std::string text_of(const Claim& claim) const;
  // Its pictures as SVG texts.
  std::vector<std::string> pictures() const;
  // Its row of the page's first table in one line, then its section.
  std::string html_of(const Claim& claim) const;

 private:
  struct Paragraph {
    std::string text;
  };
  struct Picture {
    std::string title, x_label, y_label;
    std::vector<examples::Curve> curves;
    examples::Axes axes;
    std::string svg() const { return examples::curves_svg(curves, title, x_label, y_label, axes); }
  };
  struct Check {
    std::string what;
    double value;
    Range range;
  };

  bool quick_;
  std::list<std::variant<Paragraph, Table, Picture>> parts_;
  std::vector<Check> checks_;
  Verdict verdict_ = Verdict::Contradicted;
  std::string key_figure_;
};

// Thrown where something is missing that can't be had here, a text for instance: the program is skipped.
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The directory of a text that examples/common/fetch_text.sh has fetched. Throws Skipped where it has not.
std::filesystem::path text_directory(const std::string& name);

// The whole main(): [--quick] [--out DIR]. Measures, prints, and writes DIR/NAME.html, DIR/NAME.svg, NAME-2.svg, ...
// Returns 0 where everything was as expected, 77 where the program was skipped, else 1.
int run(int argc, char** argv, const Claim& claim, const std::function<void(Report&)>& measure);

// The page made of what programs have written to a directory, `order` first; what they were built with and run on is
// told at its end.
void write_page(const std::filesystem::path& directory, const std::filesystem::path& page,
                const std::vector<std::string>& order);

}  // namespace article
