# SPDX-License-Identifier: MIT
# Doxygen reads the pages through this: the line of the license would hide the title, and links to files that are not
# pages only work on a code forge. Doxygen links the bare name of a header by itself.
1s/^<!--.*-->$//
s,\[\([^]]*\)\](\(\.\./\)*include/[^)]*),\1,g
s,\[\([^]]*\)\](\(\.\./\)*\(bench/\)*README\.md[^)]*),\1,g
