# SPDX-License-Identifier: MIT
"""Doxygen's input filter: says in the reference what the headers leave unsaid because it is the same everywhere.

- A member of a protocol (of layers, masks, modifiers) without a comment gets the sentence of PROTOCOL.
- An overload without a comment, right after a function of its name that has one, is told to be one.
- The namespace detail is left out, but for the bases in PUBLIC_BASES, whose members are part of public classes.
- What is nobody's business is left out too: macros without a comment, what is protected, and what a Cache holds.
- Indented lines in a comment are code. Words such as Not and Or, which are classes too, are words.
- A declaration of several members becomes one for each, so that each has the comment.

Comments go in front of the code on its line, so that line numbers stay true.
"""
import re
import sys

PUBLIC_BASES = ("UnaryLayer", "MaskedLayer", "MemoryLayer", "AddedPositions", "Stack", "Optimizer", "AdamBase")

# The first expression found in a declaration decides.
# The first expression found in a declaration decides; {0} is its first group.
PROTOCOL = [
    # Layers.
    (r"\bvisit\(std::string_view", "f(name, parameter) for each parameter, in a stable order, under PyTorch's names."),
    (r"\boutput_width\(", "The width of y for an x of the given width."),
    (r"Options& options\(\) const", "The options it was made with."),
    (r"\bauto operator\(\)\(const \w+& (?:x|ids)\b", "y = layer(x, ...), the convenience call: makes and returns y."),
    (r"\bParameter<T>& \w+\(\)", "The parameter of this name. Mutable access to its value drops packed copies."),
    (r"\b(?:Linear|FeedForward|MultiHeadAttention|SelfAttention|LayerNorm)<T>& \w+\(\)", "The layer of this name."),
    (r"^struct (\w+)Options \{", "What {0} is made with."),
    (r"^struct (\w+)Options : ", "What {0} is made with."),
    (r"^(\w+) \w+ = \1::", "One of {0}."),
    (r"^(\w+Kind) kind;", "One of {0}."),
    # Masks and modifiers.
    (r"\bKeyRange range\(", "The keys that query q of head h of sample b may see lie in this range."),
    (r"\bbool visible\(", "Whether key k, which lies in the range, is visible to query q of head h of sample b."),
    (r"\bstd::uint64_t word\(", "Bit i tells whether key k + i is visible; n <= 64 keys."),
    (r"\bIndex next\(", "From k on, no key before this one is visible to query q."),
    (r"\bbind\(const AttentionShape&", "Checks it against a call and returns what serves that call."),
    (r"\bstatic \w+ top_left\(", "Query 0 stands at key 0, whatever Lq and Lk are."),
    (r"\bstatic \w+ bottom_right\(", "The last query stands at the last key."),
    (r"\bstatic \w+ from\(IntSpan", "Query q of sample b stands at key first[b] + q. The list is borrowed."),
    (r"\bV operator\(\)\(V score, const ScoreIndex<V>&", "The score that takes the place of `score`."),
    (r"\bV derivative\(", "The derivative of the new score by the old one."),
    (r"\bvoid accumulate\(const V&", "Adds d, the gradient of the new score, to those of its parameters."),
    (r"\bbool accumulates\(\)", "Whether a backward adds to gradients of its parameters."),
    (r"\bfor_head\(int \w+, int h\)", "The modifier for one head of one sample."),
    (r"^(?:And|Or|Then)\(\w first, \w second\)", "Of these two."),
    (r"^[AB] [ab];", "One of the two."),
    (r"^explicit \w+\(A mask\)", "Of this one."),
    (r"^(?:F|Derivative) d?f;", "The function."),
    (r"^(?:explicit )?Function(?:Mask|Modifier)\(F function", "Of this function."),
    (r"\) -> (?:Bias|RelativeBias)<", "Takes the element type from the argument."),
    # Containers and numbers.
    (r"^(?:constexpr )?(?:const )?T\* data\(\)", "The first element; null when there is none."),
    (r"\bextents\(\) const", "All extents."),
    (r"\bextent\(int d\) const", "The extent of dimension d."),
    (r"\bstrides\(\) const", "All strides, in elements."),
    (r"\bstride\(int d\) const", "The stride of dimension d, in elements."),
    (r"\bint rank\(\) const|static constexpr int rank\b", "The number of dimensions."),
    (r"\b(?:Index|int) size\(\) const", "The number of elements."),
    (r"\bbool empty\(\) const", "Whether there are no elements."),
    (r"\b(?:begin|end)\(\) const", "For range loops."),
    (r"^using Matrix =", "What results are, where plain Eigen came in."),
    (r"^using Cache =", "What backward() needs of a forward."),
    (r"^using A =", "The type of sums."),
    (r"^std::string layer;", "The layer's name, a path."),
    (r"^Index head( = \S+)?;", "The number of the head."),
    (r"\busing value_type\b", "The element type, without const."),
    (r"\bfriend\b.*\bVec \w+\(|\bfriend\b.*\bVec operator", "Lane by lane."),
    (r"\bfriend\b.*\bDual\b", "With its derivative."),
]


class Scopes:
    """Follows braces and parentheses well enough for code that clang-format has laid out."""

    def __init__(self):
        self.kinds = []  # "namespace", "detail", "class", "cache" or "code"
        self.statement = ""
        self.parentheses = 0

    def read(self, code):
        for c in code:
            if c == "{":
                self.kinds.append(self.kind_of_block())
                self.statement = ""
            elif c == "}":
                if self.kinds:
                    self.kinds.pop()
                self.statement = ""
            elif c == ";" and self.parentheses == 0:
                self.statement = ""
            else:
                self.parentheses += (c == "(") - (c == ")")
                self.statement += c
        if re.fullmatch(r"\s*(public|private|protected)\s*:\s*", self.statement):
            self.statement = ""
        self.statement += " "

    def kind_of_block(self):
        if self.parentheses == 0:
            head = without_templates(self.statement)
            if re.search(r"\bnamespace\b", head):
                return "detail" if re.search(r"\bdetail\b", head) else "namespace"
            if re.match(r"\s*(class|struct|union)\b", head) and "(" not in head.split(":")[0].replace("R(A...)", ""):
                return "cache" if re.match(r"\s*struct Cache\b", head) else "class"
        return "code"

    def innermost(self):
        return self.kinds[-1] if self.kinds else None

    def in_detail(self):
        return "detail" in self.kinds

    def declares(self):
        """Whether a line that starts here starts a declaration of a namespace or a class."""
        return "code" not in self.kinds and self.parentheses == 0 and not self.statement.strip()


def without_templates(declaration):
    """The declaration without `template <...>` and `requires(...)` in front of it."""
    text = declaration.strip()
    while True:
        match = re.match(r"template\s*<|requires\s*\(", text)
        if not match:
            return re.sub(r"^requires\s+\w+<(?:[^<>]|<[^<>]*>)*>\s*", "", text)
        opening = text[match.end() - 1]
        closing = {"<": ">", "(": ")"}[opening]
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += (text[at] == opening) - (text[at] == closing)
            at += 1
        text = text[at:].strip()


def without_comments(line):
    line = re.sub(r'"(\\.|[^"\\])*"' + r"|'(\\.|[^'\\])'", '""', line)
    return re.sub(r"//.*", "", line)


def declaration_at(lines, start):
    """The code from a line up to the first brace or semicolon."""
    text = ""
    for line in lines[start : start + 12]:
        text += " " + without_comments(line).strip()
        if re.search(r"[;{]", text):
            break
    return text.strip()


def protocol_sentence(declaration):
    text = without_templates(declaration)
    for form, sentence in PROTOCOL:
        match = re.search(form, text)
        if match:
            return sentence.format(*match.groups())
    return None


def overload_sentence(declaration, documented):
    if "Context& context" in documented and "Context& context" not in declaration:
        return "The same with a context of its own, which is serial and allocates its memory anew."
    return "@overload"


def with_code(lines):
    """Comments with @code around the lines that stand further in than their text."""
    out = list(lines)
    is_code = [bool(re.match(r"\s*///   +\S", line)) for line in lines]
    for number, line in enumerate(lines):
        if not is_code[number]:
            continue
        before, after = lines[number - 1].strip(), lines[number + 1].strip()
        continues_list = before.startswith("/// - ")
        if continues_list:
            is_code[number] = False
            continue
        if not is_code[number - 1]:
            out[number - 1] = out[number - 1].rstrip() + " @code{.cpp}\n"
        blank_inside = after == "///" and is_code[number + 2]
        if blank_inside:
            is_code[number + 1] = True
        if not is_code[number + 1]:
            out[number] = out[number].rstrip() + " @endcode\n"
    return out


def function_name(declaration):
    match = re.match(r"[^({;=]*?(operator\s*(?:\(\)|\[\]|[^\s(]+)|~?\w+)\s*\(", without_templates(declaration))
    return match.group(1) if match else None


def members_apart(line, comment):
    """`T a, b;` as `T a; T b;`, each with the comment that the line has or that stands before it."""
    match = re.match(r"(\s*)((?:const )?[\w:]+(?:<[^;={}]*>)?) (\w+(?:\{\}| = [^,;()]+)?(?:, \w+(?:\{\}| = [^,;()]+)?)+);"
                     r"(?:\s*///< (.*))?$", line.rstrip())
    if not match:
        return line
    indent, kind, names, trailing = match.groups()
    text = trailing or comment
    return indent + " ".join(f"{kind} {name}; /**< {text} */" for name in names.split(", "))


class Header:
    """Goes through the lines of a header, which come in order."""

    def __init__(self, lines):
        self.lines = lines
        self.scopes = Scopes()
        self.comment = ""  # what stands right before
        self.name, self.declaration = None, ""  # documented last, with nothing but overloads of it since
        self.hides_detail = False  # the rest of this namespace
        self.hides_protected = False  # the rest of this part of a class
        self.hides_macro = False  # the lines that go on with it

    def filtered(self, number, line):
        if re.match(r"\s*friend (class )?(detail::)?\w+<.*>;", line):
            line = ""  # which Doxygen takes for a member
        line = line.rstrip("\n")
        text = line.strip()
        if text.startswith("//"):
            return self.with_comment(line, text)
        continues = number > 0 and self.lines[number - 1].rstrip().endswith("\\")
        if text.startswith("#") or text.startswith("HEED_NAMESPACE") or continues:
            self.hides_macro = self.hides_macro if continues else text.startswith("#define") and not self.comment
            self.comment = ""
            return "" if self.hides_macro else line
        self.hides_macro = False

        prefix, suffix = "", ""
        if text and not text.startswith("}") and self.scopes.declares():
            prefix, line, suffix = self.with_declaration(number, line, text)
        before, after = self.read(number, text)
        self.comment = ""
        return (before or prefix) + line + (after or suffix)

    def with_comment(self, line, text):
        if text.startswith("///"):
            self.comment = f"{self.comment} {text[3:].strip()}".strip()
            return re.sub(r"(?<![\w:])(And|Loss|Not|Or|Then)(?= [a-z])", r"%\1", line)
        return line

    def with_declaration(self, number, line, text):
        """What stands before, on and after the line where a declaration begins."""
        if re.match(r"(public|private|protected)\s*:", text):
            shown_again = "/** @endcond */ " if self.hides_protected else ""
            self.hides_protected = text.startswith("protected") and not self.hides_detail
            return shown_again, line, " /** @cond */" if self.hides_protected else ""

        declaration = declaration_at(self.lines, number)
        name = function_name(declaration)
        sentence = None
        if not self.comment and "///<" not in line:
            sentence = protocol_sentence(declaration)
            if not sentence and name and name == self.name:
                sentence = overload_sentence(declaration, self.declaration)
        if self.comment or sentence:
            self.name, self.declaration = name, declaration
        elif not re.match(r"(using|friend)\b", text):
            self.name = None

        if self.scopes.innermost() == "cache" and not name and text.endswith(";"):
            return "/** @cond */ ", line, " /** @endcond */"
        if self.scopes.innermost() == "class":
            line = members_apart(line, self.comment)
        return f"/** {sentence} */ " if sentence else "", line, ""

    def read(self, number, text):
        """Takes in a line of code. Returns what stands before and after it where a namespace detail begins or ends, or
        one of the bases in it that are shown."""
        was_inside = self.scopes.in_detail()
        self.scopes.read(without_comments(self.lines[number]))
        is_inside = self.scopes.in_detail()
        at_its_level = self.scopes.innermost() == "detail"
        if is_inside and (not was_inside or (at_its_level and text == "};" and not self.hides_detail)):
            self.hides_detail = True
            return "", "  /** @cond */"
        if was_inside and not is_inside and self.hides_detail:
            self.hides_detail = False
            return "/** @endcond */ ", ""
        if at_its_level and not text and shows_next(self.lines, number):
            self.hides_detail = False
            return "", "/** @endcond */"
        return "", ""

    def end(self):
        # Doxygen fails on what it does not know: better than names that are silently missing.
        lost = self.scopes.kinds or self.hides_detail or self.hides_protected
        return ["/** @file @reference_filter_lost_track_of_the_braces */"] if lost else []


def shows_next(lines, number):
    """Whether the block after an empty line is one of the bases that are shown."""
    block = " ".join(without_comments(line).strip() for line in lines[number + 1 : number + 16])
    block = without_templates(block)
    match = re.match(r"(?:class|struct) (\w+)", block)
    return bool(match) and match.group(1) in PUBLIC_BASES


def without_raw_strings(text):
    return re.sub(r'R"(\w*)\((.*?)\)\1"', lambda match: '""' + "\n" * match.group(2).count("\n"), text, flags=re.DOTALL)


with open(sys.argv[1], encoding="utf-8") as file:
    header = Header(with_code(without_raw_strings(file.read()).splitlines(keepends=True)))
print("\n".join([header.filtered(number, line) for number, line in enumerate(header.lines)] + header.end()))
