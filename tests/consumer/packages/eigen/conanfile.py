# SPDX-License-Identifier: MIT
"""The system's Eigen as a Conan package, so that the recipe of heed is tested without a server."""

import os

from conan import ConanFile
from conan.tools.files import copy


class Eigen(ConanFile):
    name = "eigen"
    version = "3.4.0"
    package_type = "header-library"

    def package(self):
        copy(self, "*", os.environ["EIGEN_INCLUDE"], os.path.join(self.package_folder, "include"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "Eigen3")
        self.cpp_info.set_property("cmake_target_name", "Eigen3::Eigen")
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
