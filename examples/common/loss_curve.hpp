// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace examples {

// Points of one line of a picture, x rising. Points that are not finite are left out.
struct Curve {
  struct Point {
    double x, y;
  };
  std::string name;
  std::vector<Point> points;
};

// How far apart equal ratios, or equal differences, are drawn. A logarithmic axis leaves out what is not above 0.
enum class Scale { Linear, Log2, Log10 };
struct Axes {
  Scale x = Scale::Linear, y = Scale::Linear;
};

// The means of every `group` values, each at the number of its last value, counted from 1: the losses of all steps as a
// line that can be read.
std::vector<Curve::Point> group_means(const std::vector<double>& values, std::size_t group);

// Lines of text, each with its end, in which the curves are drawn with the marks . o + x * # in turn, and then
// over again. Later curves lie over earlier ones. Empty without points.
std::string draw_curves(const std::vector<Curve>& curves, std::size_t width = 64, std::size_t height = 12,
                        const Axes& axes = {});

// The same as SVG text, with axes, grid lines and a legend; light or dark as the reader prefers.
std::string curves_svg(const std::vector<Curve>& curves, const std::string& title, const std::string& x_label,
                       const std::string& y_label, const Axes& axes = {});
// Writes it. Throws std::runtime_error, which names the file, if it cannot.
void save_curves(const std::string& file, const std::vector<Curve>& curves, const std::string& title,
                 const std::string& x_label, const std::string& y_label);

}  // namespace examples
