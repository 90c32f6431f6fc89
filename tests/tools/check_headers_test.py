#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each rule of check_headers.py refuses a tree that breaks it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("check_headers.py")
START = "// SPDX-License-Identifier: MIT\n#pragma once\n"
GOOD = {
    "heed.hpp": START + "#include <heed/core/tensor.hpp>\n#include <heed/mask/basic.hpp>\n",
    "core/tensor.hpp": START + "#include <vector>\n#include <Eigen/Core>\n",
    "mask/basic.hpp": START + "#include <heed/core/tensor.hpp>\n",
}


def check(**changes):
    """Runs the script on the good tree with changes, mask__basic="..." for mask/basic.hpp: (exit code, output)."""
    files = GOOD | {name.replace("__", "/") + ".hpp": START + text for name, text in changes.items()}
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            path = pathlib.Path(directory, "heed", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        run = subprocess.run([sys.executable, SCRIPT, directory], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


class CheckHeaders(unittest.TestCase):
    def assert_refused(self, message, **changes):
        code, output = check(**changes)
        self.assertEqual(code, 1, output)
        self.assertIn(message, output)

    def test_accepts_a_good_tree(self):
        self.assertEqual(check(), (0, "3 headers, 0 errors\n"))

    def test_refuses_a_layer_to_the_right(self):
        self.assert_refused("core is below mask", core__tensor="#include <heed/mask/basic.hpp>\n")

    def test_refuses_another_library(self):
        self.assert_refused("includes <boost/any.hpp>", mask__basic="#include <boost/any.hpp>\n")

    def test_refuses_other_parts_of_eigen(self):
        self.assert_refused("includes <Eigen/Dense>", mask__basic="#include <Eigen/Dense>\n")

    def test_allows_system_headers_only_where_named(self):
        self.assertEqual(check(heed="#include <heed/io/file.hpp>\n#include <heed/mask/basic.hpp>\n",
                               io__file="#include <sys/mman.h>\n")[0], 0)
        self.assert_refused("includes <sys/mman.h>", mask__basic="#include <sys/mman.h>\n")

    def test_refuses_a_header_that_macros_of_others_can_break(self):
        declares = "HEED_NAMESPACE_BEGIN\nHEED_NAMESPACE_END\n"
        hide, restore = (f"#include <heed/core/{name}_macros.hpp>\n" for name in ["hide", "restore"])
        tree = {"core__hide_macros": "", "core__restore_macros": ""}
        self.assertEqual(check(core__tensor=hide + declares + restore, **tree)[0], 0)
        self.assert_refused("line 3 must be", core__tensor=declares + restore, **tree)
        self.assert_refused("line 3 must be", core__tensor=hide + declares, **tree)

    def test_refuses_quotes(self):
        self.assert_refused('includes "tensor.hpp"', mask__basic='#include "tensor.hpp"\n')

    def test_refuses_a_circle(self):
        self.assert_refused("circle", core__tensor="#include <heed/core/error.hpp>\n",
                            core__error="#include <heed/core/tensor.hpp>\n")

    def test_refuses_a_circle_of_directories(self):
        self.assert_refused("mask/a/: its headers include it in a circle",
                            mask__basic="#include <heed/mask/a/one.hpp>\n#include <heed/core/tensor.hpp>\n",
                            mask__a__one="#include <heed/mask/b/one.hpp>\n", mask__a__two="",
                            mask__b__one="#include <heed/mask/a/two.hpp>\n")

    def test_refuses_a_header_that_nothing_leads_to(self):
        self.assert_refused("mask/sparse.hpp: no header of heed/ leads to it", mask__sparse="")
        self.assertEqual(check(mask__sparse="", other="#include <heed/mask/sparse.hpp>\n")[0], 0)

    def test_refuses_an_unknown_directory(self):
        self.assert_refused("heed/util is no layer", util__misc="")

    def test_reports_a_long_header(self):
        code, output = check(mask__basic="\n" * 500)
        self.assertEqual(code, 0)
        self.assertIn("mask/basic.hpp: 502 lines", output)


if __name__ == "__main__":
    unittest.main()
