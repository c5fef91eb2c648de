//! The rules that look at one file at a time.

use super::Finding;
use super::source::{SourceFile, has_word};

/// Macros that stand for work not done, or for debugging left behind.
const LEFTOVER_MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Words for work put off. Spelled in halves, because this file is held to the rule too.
const LEFTOVER_WORDS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// A test that waits for the clock is slow when it passes and flaky when the machine is busy.
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep"];

/// A file that a rule lets off, and why.
type Allowance = (&'static str, &'static str);

/// Test files that may sleep.
const MAY_SLEEP: &[Allowance] = &[];

/// Files that may hold `unsafe` code. Each block says why it is sound (clippy asks for that), and here is why the
/// file needs it at all.
const MAY_BE_UNSAFE: &[Allowance] = &[
    ("crates/model/src/fetch.rs", "the prefetch instruction, which the language has no safe name for"),
    ("crates/ordain/src/memory.rs", "the allocator's settings are functions of C"),
    ("crates/engines/tests/allocations/main.rs", "an allocator that counts; there is no safe way to be one"),
    ("crates/runtime/src/under_way.rs", "a page that is shared with a file, which only the system can map"),
];

/// How a place in the order is made of a stamp, or a stamp of it.
const STAMP_CONVERSIONS: &[&str] =
    &["Gsn::from(", "Stamp::from(", "Gsn::into", "stamp.into(", "gsn.into(", "gsn().into("];

/// Crates whose code may take a stamp apart: the families, their engines, and the one that defines the conversions.
const STAMP_CRATES: &[&str] = &["deterministic", "commit", "engines", "model"];

/// Files of other crates that may, because they are about the deterministic family alone.
const MAY_CONVERT_STAMPS: &[Allowance] = &[
    ("crates/checker/src/history.rs", "the check of serial order, which takes the family's log"),
    ("crates/node/src/aborts.rs", "an operator aborts a transaction by its place in the order"),
    ("crates/ordain/src/sim/deterministic.rs", "the system of the simulator that runs the family"),
    ("crates/ordain/src/sim/measured.rs", "the ends of the family's transactions by its log"),
    ("crates/sim/src/verdict.rs", "the sizes of batches, by the family's log"),
];

/// Files that may hold a function of more lines.
const MAY_HAVE_LONG_FUNCTIONS: &[Allowance] =
    &[("crates/lua/src/vm.rs", "the loop that dispatches instructions; a call for each of them costs speed")];

const RUST_LINES_MAX: usize = 900;
const FUNCTION_LINES_MAX: usize = 100;
const FILE_KIB_MAX: u64 = 300;
const ARCHITECTURE_LINES_MAX: usize = 250;

type Rule = fn(&SourceFile) -> Vec<Finding>;

const RULES: &[Rule] = &[
    leftover_macros,
    ignored_tests,
    leftover_words,
    sleeping_tests,
    module_docs,
    whitespace,
    large_files,
    long_rust_files,
    functions_that_are_too_long,
    long_architecture,
    inherited_lints,
    unsafe_code,
    stamps_taken_apart,
];

/// Every finding of every rule in one file.
pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    RULES.iter().flat_map(|rule| rule(file)).collect()
}

/// An allowance that nothing needs any more is a hole; it goes.
pub(super) fn check_allowances(files: &[SourceFile]) -> Vec<Finding> {
    let sleepers = unused(files, "MAY_SLEEP", MAY_SLEEP, |file| !sleeps(file).is_empty());
    let unsafes = unused(files, "MAY_BE_UNSAFE", MAY_BE_UNSAFE, |file| !unsafe_lines(file).is_empty());
    let stamps = unused(files, "MAY_CONVERT_STAMPS", MAY_CONVERT_STAMPS, |file| !stamps(file).is_empty());
    let functions = unused(files, "MAY_HAVE_LONG_FUNCTIONS", MAY_HAVE_LONG_FUNCTIONS, |file| {
        !long_functions(file).is_empty()
    });
    sleepers.into_iter().chain(unsafes).chain(stamps).chain(functions).collect()
}

fn unused(
    files: &[SourceFile],
    list: &str,
    allowances: &[Allowance],
    needs: fn(&SourceFile) -> bool,
) -> Vec<Finding> {
    let is_needed = |path: &str| files.iter().any(|file| file.path == path && needs(file));
    allowances
        .iter()
        .filter(|(path, _)| !is_needed(path))
        .map(|(path, _)| Finding {
            path: (*path).to_string(),
            line: None,
            what: format!("no longer needs its place in {list}; remove it there (xtask/src/tidy/rules.rs)"),
        })
        .collect()
}

fn is_allowed(file: &SourceFile, allowances: &[Allowance]) -> bool {
    allowances.iter().any(|(path, _)| *path == file.path)
}

fn leftover_macros(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    each_line(file, file.code_lines(), LEFTOVER_MACROS, |name| {
        format!("`{name}` is left over; do the work, or return an error that says what is not supported")
    })
}

fn ignored_tests(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let ignored = file.code_lines().filter(|(_, line)| line.contains("#[ignore"));
    ignored
        .map(|(line, _)| {
            Finding::at(file, line, "an ignored test proves nothing; mend it, make it fast, or remove it")
        })
        .collect()
}

fn leftover_words(file: &SourceFile) -> Vec<Finding> {
    // Comments count, unlike in the other rules. In Markdown a code span may name the word.
    let lines: Box<dyn Iterator<Item = (usize, &str)>> =
        if file.is_markdown() { Box::new(file.code_lines()) } else { Box::new(file.text_lines()) };
    each_line(file, lines, LEFTOVER_WORDS, |word| {
        format!("`{word}` puts work off; do it now, or state the limit as a fact")
    })
}

fn sleeps(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    each_line(file, file.test_lines().into_iter(), SLEEPS, |call| {
        format!("`{call}` in a test; wait for the event itself, or use the simulator's time")
    })
}

fn sleeping_tests(file: &SourceFile) -> Vec<Finding> {
    if is_allowed(file, MAY_SLEEP) { Vec::new() } else { sleeps(file) }
}

fn module_docs(file: &SourceFile) -> Vec<Finding> {
    let parts: Vec<&str> = file.path.split('/').collect();
    let is_source = matches!(parts[..], ["crates", _, "src", ..] | ["xtask", "src", ..]);
    if is_source && file.is_rust() && !file.text.starts_with("//!") {
        return vec![Finding::at(file, 1, "no module doc; open with `//!`: what this is and why it is so")];
    }
    Vec::new()
}

fn long_rust_files(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if file.is_rust() && lines > RUST_LINES_MAX {
        let what =
            format!("{lines} lines, and {RUST_LINES_MAX} are the most; cut it by concept or by scenario");
        return vec![Finding::at(file, RUST_LINES_MAX + 1, what)];
    }
    Vec::new()
}

fn functions_that_are_too_long(file: &SourceFile) -> Vec<Finding> {
    if is_allowed(file, MAY_HAVE_LONG_FUNCTIONS) { Vec::new() } else { long_functions(file) }
}

fn long_functions(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.is_rust() {
        return findings;
    }
    // The functions around the line at hand: where each begins, and the column of its first word.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (number, line) in file.code_lines() {
        let words = line.trim_start();
        if words.is_empty() {
            continue;
        }
        let column = line.len() - words.len();
        // A declaration ends without a brace, and what is around it goes on further left.
        while open.pop_if(|(_, begun)| *begun > column).is_some() {}
        let is_whole = words.trim_end().ends_with([';', '}']);
        if let Some((start, _)) = open.pop_if(|(_, begun)| *begun == column && is_whole) {
            let lines = number + 1 - start;
            if lines > FUNCTION_LINES_MAX && words.starts_with('}') {
                let what = format!(
                    "a function of {lines} lines, and {FUNCTION_LINES_MAX} are the most; name its parts"
                );
                findings.push(Finding::at(file, start, what));
            }
        }
        // rustfmt puts the brace that closes a function under its first word.
        if begins_function(words) && !is_whole {
            open.push((number, column));
        }
    }
    findings
}

/// Whether a line of code begins a function.
fn begins_function(line: &str) -> bool {
    let before_parameters = line.split(['(', '<']).next().unwrap_or_default();
    // A visibility such as `pub(crate)` has parentheses too.
    let rest =
        line.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")).map_or(before_parameters, |r| r.1);
    let mut words = rest.split_whitespace();
    let is_qualifier = |word: &&str| ["pub", "const", "async", "unsafe", "extern"].contains(word);
    words.find(|word| !is_qualifier(word)) == Some("fn")
}

fn whitespace(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in file.text_lines() {
        if line.contains('\t') {
            findings.push(Finding::at(file, number, "a tab; indent with spaces, write `\\t` in a string"));
        }
        if line.ends_with(char::is_whitespace) {
            findings.push(Finding::at(file, number, "whitespace at the end of the line; remove it"));
        }
    }
    findings
}

fn large_files(file: &SourceFile) -> Vec<Finding> {
    let kib = file.bytes.div_ceil(1024);
    if kib > FILE_KIB_MAX {
        let what = format!("{kib} KiB, and {FILE_KIB_MAX} are the most; generate it, or leave it out of git");
        return vec![Finding::on(file, what)];
    }
    Vec::new()
}

fn long_architecture(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if file.path == "ARCHITECTURE.md" && lines > ARCHITECTURE_LINES_MAX {
        let what = format!(
            "{lines} lines, and {ARCHITECTURE_LINES_MAX} are the most; move detail to docs/ or to module docs"
        );
        return vec![Finding::at(file, ARCHITECTURE_LINES_MAX + 1, what)];
    }
    Vec::new()
}

fn inherited_lints(file: &SourceFile) -> Vec<Finding> {
    let parts: Vec<&str> = file.path.split('/').collect();
    if !matches!(parts[..], ["crates", _, "Cargo.toml"] | ["xtask", "Cargo.toml"]) {
        return Vec::new();
    }
    let mut section = "";
    for line in file.text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[lints]" && line.replace(' ', "") == "workspace=true" {
            return Vec::new();
        }
    }
    vec![Finding::on(file, "does not inherit the workspace's lints; add `[lints]` with `workspace = true`")]
}

fn unsafe_lines(file: &SourceFile) -> Vec<usize> {
    if !file.is_rust() {
        return Vec::new();
    }
    file.code_lines().filter(|(_, line)| has_word(line, "unsafe")).map(|(number, _)| number).collect()
}

fn unsafe_code(file: &SourceFile) -> Vec<Finding> {
    if is_allowed(file, MAY_BE_UNSAFE) {
        return Vec::new();
    }
    let what = "`unsafe` here is not agreed on; do without, or name the file in MAY_BE_UNSAFE with the reason \
                (xtask/src/tidy/rules.rs)";
    unsafe_lines(file).into_iter().map(|line| Finding::at(file, line, what)).collect()
}

/// Conversions in product code between a stamp and a place in the order.
fn stamps(file: &SourceFile) -> Vec<Finding> {
    let parts: Vec<&str> = file.path.split('/').collect();
    if !file.is_rust() || !matches!(parts[..], ["crates", name, "src", ..] if !STAMP_CRATES.contains(&name)) {
        return Vec::new();
    }
    let tests = file.test_lines();
    let product = file.code_lines().filter(|line| !tests.contains(line));
    each_line(file, product, STAMP_CONVERSIONS, |call| {
        format!(
            "`{call}` outside a family: a stamp is opaque there; compare it, or name the file in MAY_CONVERT_STAMPS with \
             the reason (xtask/src/tidy/rules.rs)"
        )
    })
}

fn stamps_taken_apart(file: &SourceFile) -> Vec<Finding> {
    if is_allowed(file, MAY_CONVERT_STAMPS) { Vec::new() } else { stamps(file) }
}

/// A finding for every line and word of the list on it.
fn each_line<'a>(
    file: &SourceFile,
    lines: impl Iterator<Item = (usize, &'a str)>,
    words: &[&str],
    what: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in lines {
        for word in words.iter().filter(|word| has_word(line, word)) {
            findings.push(Finding::at(file, number, what(word)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines (0 for the whole file) that a rule finds fault with.
    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(&SourceFile::new(path, text)).iter().map(|finding| finding.line.unwrap_or(0)).collect()
    }

    const NONE: [usize; 0] = [];
    const LIB: &str = "crates/log/src/lib.rs";

    #[test]
    fn macros_left_over() {
        let bad = "fn f() {\n    todo!()\n}\nfn g() {\n    unimplemented!(\"later\");\n    dbg!(1);\n}\n";
        assert_eq!(lines(leftover_macros, LIB, bad), [2, 5, 6]);
        assert_eq!(lines(leftover_macros, LIB, "// no todo!() here\nlet a = \"dbg!\";\n"), NONE);
        assert_eq!(lines(leftover_macros, "README.md", "We never use todo! at all"), NONE);
    }

    #[test]
    fn tests_ignored() {
        assert_eq!(lines(ignored_tests, LIB, "#[test]\n#[ignore]\nfn a() {}\n"), [2]);
        assert_eq!(lines(ignored_tests, LIB, "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n"), [2]);
        assert_eq!(lines(ignored_tests, LIB, "#[test]\nfn ignore() {}\n"), NONE);
    }

    #[test]
    fn words_left_over() {
        for word in LEFTOVER_WORDS {
            assert_eq!(lines(leftover_words, LIB, &format!("//! A.\n// {word}: later\n")), [2]);
            assert_eq!(lines(leftover_words, ".ci/run", &format!("# {word}\n")), [1]);
            assert_eq!(lines(leftover_words, "docs/guide.md", &format!("{word} here, `{word}` not\n")), [1]);
            assert_eq!(lines(leftover_words, "docs/guide.md", &format!("`{word}` is refused\n")), NONE);
            assert_eq!(lines(leftover_words, ".ci/run", &format!("mktemp -d a.{word}{word}\n")), NONE);
        }
    }

    #[test]
    fn tests_sleeping() {
        let call = "    std::thread::sleep(d);\n";
        let in_module = format!("#[cfg(test)]\nmod tests {{\n{call}}}\n");
        assert_eq!(lines(sleeping_tests, LIB, &in_module), [3]);
        assert_eq!(lines(sleeping_tests, "tests/kill.rs", call), [1]);
        assert_eq!(lines(sleeping_tests, "crates/log/tests/torn.rs", "tokio::time::sleep(d).await;\n"), [1]);
        assert_eq!(lines(sleeping_tests, "crates/runtime/src/lib.rs", call), NONE);
    }

    #[test]
    fn docs_missing() {
        assert_eq!(lines(module_docs, LIB, "use std::fmt;\n"), [1]);
        assert_eq!(lines(module_docs, "xtask/src/main.rs", "\n//! Late.\n"), [1]);
        assert_eq!(lines(module_docs, LIB, "//! Log.\n"), NONE);
        assert_eq!(lines(module_docs, "crates/log/tests/torn.rs", "use std::fmt;\n"), NONE);
    }

    #[test]
    fn files_too_long() {
        assert_eq!(lines(long_rust_files, LIB, &"a\n".repeat(901)), [901]);
        assert_eq!(lines(long_rust_files, LIB, &"a\n".repeat(900)), NONE);
        assert_eq!(lines(long_architecture, "ARCHITECTURE.md", &"a\n".repeat(251)), [251]);
        assert_eq!(lines(long_architecture, "ARCHITECTURE.md", &"a\n".repeat(250)), NONE);
        assert_eq!(lines(large_files, "plot.svg", &"a".repeat(300 * 1024 + 1)), [0]);
        assert_eq!(lines(large_files, "plot.svg", &"a".repeat(300 * 1024)), NONE);
    }

    #[test]
    fn functions_too_long() {
        let body = |lines| "        a();\n".repeat(lines);
        let method = |head: &str, lines| format!("impl A {{\n    {head} {{\n{}    }}\n}}\n", body(lines));
        for head in ["fn f()", "pub(crate) const fn f<T>(a: T)", "pub async fn f(\n        a: u8,\n    )"] {
            let others = head.lines().count() + 1;
            assert_eq!(lines(long_functions, LIB, &method(head, 101 - others)), [2], "{head}");
            assert_eq!(lines(long_functions, LIB, &method(head, 100 - others)), NONE, "{head}");
        }
        let declared =
            format!("trait A {{\n    fn f(\n        a: u8,\n    );\n    fn g();\n{}}}\n", body(120));
        assert_eq!(lines(long_functions, LIB, &declared), NONE);
        assert_eq!(lines(long_functions, LIB, &format!("const F: fn() = {{\n{}}};\n", body(120))), NONE);
    }

    #[test]
    fn whitespace_out_of_place() {
        assert_eq!(lines(whitespace, LIB, "a\n\tb\nc \nd\r\n"), [2, 3, 4]);
        assert_eq!(lines(whitespace, LIB, "a\n    b\n"), NONE);
    }

    #[test]
    fn lints_not_inherited() {
        let path = "crates/log/Cargo.toml";
        assert_eq!(
            lines(inherited_lints, path, "[package]\nname = \"a\"\n[dependencies]\nworkspace = true\n"),
            [0]
        );
        assert_eq!(lines(inherited_lints, path, "[lints.rust]\nworkspace = true\n"), [0]);
        assert_eq!(lines(inherited_lints, path, "[lints]\nworkspace = true\n"), NONE);
        assert_eq!(lines(inherited_lints, "Cargo.toml", "[workspace]\n"), NONE);
    }

    #[test]
    fn unsafe_not_agreed_on() {
        assert_eq!(lines(unsafe_code, LIB, "fn f() {\n    unsafe { g() }\n}\n"), [2]);
        assert_eq!(lines(unsafe_code, LIB, "// unsafe in words\n#![deny(unsafe_op_in_unsafe_fn)]\n"), NONE);
    }

    #[test]
    fn stamps_converted_outside_a_family() {
        let code = "let a = Gsn::from(stamp);\nlet b: Stamp = gsn.into();\nlet c = new_gsn::from(1);\n// Stamp::from(d)\n";
        assert_eq!(lines(stamps_taken_apart, "crates/gateway/src/lib.rs", code), [1, 2]);
        for path in ["crates/engines/src/lib.rs", "crates/sim/tests/a.rs", "crates/node/src/aborts.rs"] {
            assert_eq!(lines(stamps_taken_apart, path, code), NONE, "{path}");
        }
        let in_test = "#[cfg(test)]\nmod tests {\n    let a = Gsn::from(stamp);\n}\n";
        assert_eq!(lines(stamps_taken_apart, "crates/gateway/src/lib.rs", in_test), NONE);
    }

    #[test]
    fn allowances_without_need() {
        let files = [SourceFile::new("a.rs", "unsafe { b() }"), SourceFile::new("c.rs", "d()")];
        let allowances = [("a.rs", "it binds b"), ("c.rs", "it once did")];
        let findings = unused(&files, "MAY_BE_UNSAFE", &allowances, |file| !unsafe_lines(file).is_empty());
        assert_eq!(findings.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), ["c.rs"]);
    }

    #[test]
    fn every_rule_runs() {
        let findings = check(&SourceFile::new(LIB, "fn f() { todo!() }\t\n"));
        let heads: Vec<_> =
            findings.iter().map(|finding| finding.what.split([',', ';']).next().unwrap()).collect();
        let expected =
            ["`todo!` is left over", "no module doc", "a tab", "whitespace at the end of the line"];
        assert_eq!(heads, expected);
    }
}
