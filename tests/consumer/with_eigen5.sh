#!/bin/sh
# SPDX-License-Identifier: MIT
# with_eigen5.sh EIGEN_PREFIX COMMAND...: runs a command once the headers of Eigen 5 are under EIGEN_PREFIX.
set -eu
"$(dirname "$0")/../tools/fetch_eigen5.sh" "$1"
shift
exec "$@"
