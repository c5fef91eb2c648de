//! A file as the rules see it: its text, and its text with everything that is not code blanked out.

use std::path::Path;

use anyhow::Context;

/// A file of the repository.
pub(super) struct SourceFile {
    /// From the root, with forward slashes.
    pub(super) path: String,
    /// How long it is on disk.
    pub(super) bytes: u64,
    /// Its lines; none where the file is not UTF-8 text.
    pub(super) text: String,
    /// `text` line by line and column by column, with spaces for what only talks about code: comments and literals
    /// in Rust, code blocks in Markdown. Other files are as they are.
    pub(super) code: String,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let code = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
            Some("rs") => blank_rust_comments_and_literals(text),
            Some("md") => blank_markdown_code(text),
            _ => text.to_string(),
        };
        Self { path: path.to_string(), bytes: text.len() as u64, text: text.to_string(), code }
    }

    pub(super) fn read(root: &Path, path: &str) -> anyhow::Result<Self> {
        let content = std::fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let bytes = content.len() as u64;
        let text = String::from_utf8(content).unwrap_or_default();
        Ok(Self { bytes, ..Self::new(path, &text) })
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(super) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Lines of code, numbered from 1.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines of text, numbered from 1.
    pub(super) fn text_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        // Not `lines()`, which would hide a carriage return at the end of a line.
        self.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines of code that only run in tests, numbered from 1: all of a file in a `tests` folder or named `tests.rs`,
    /// and the module after `#[cfg(test)]` in any other.
    pub(super) fn test_lines(&self) -> Vec<(usize, &str)> {
        let whole = self.path.split('/').any(|part| part == "tests" || part == "tests.rs");
        if whole {
            return self.code_lines().collect();
        }
        let mut found = Vec::new();
        let mut lines = self.code_lines();
        while let Some((number, line)) = lines.next() {
            if line.trim_start().starts_with("#[cfg(test)]") {
                let indent = line.len() - line.trim_start().len();
                let closing = format!("{}}}", " ".repeat(indent));
                found.push((number, line));
                for (number, line) in lines.by_ref() {
                    found.push((number, line));
                    // rustfmt puts the brace that closes an item under its first column. An item without braces
                    // ends with a semicolon.
                    let is_at_item = line.len() > indent && line.as_bytes()[indent] != b' ';
                    if line.trim_end() == closing || (is_at_item && line.trim_end().ends_with(';')) {
                        break;
                    }
                }
            }
        }
        found
    }
}

/// Whether a line has this word, not as part of a longer one.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open_end = word.ends_with(is_part) && after.is_some_and(is_part);
        !before.is_some_and(is_part) && !open_end
    })
}

/// Blanks comments, strings and characters of Rust.
fn blank_rust_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_comment_or_literal(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            let end = end.min(chars.len());
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// Where the comment or literal that starts here ends, which may be past the end of the file; `at` if none starts.
fn end_of_comment_or_literal(chars: &[char], at: usize) -> usize {
    let starts_with =
        |at: usize, what: &str| what.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let after = |from: usize, what: &str| {
        (from..chars.len()).find(|&i| starts_with(i, what)).map_or(chars.len(), |i| i + what.len())
    };
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if starts_with(at, "//") => (at..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len()),
        '/' if starts_with(at, "/*") => {
            let (mut depth, mut i) = (1, at + 2);
            while depth > 0 && i < chars.len() {
                if starts_with(i, "/*") {
                    (depth, i) = (depth + 1, i + 2);
                } else if starts_with(i, "*/") {
                    (depth, i) = (depth - 1, i + 2);
                } else {
                    i += 1;
                }
            }
            i
        }
        '"' => after_escaped(chars, at + 1, '"'),
        // A character, unless it is a lifetime.
        '\'' if chars.get(at + 1) == Some(&'\\') => after_escaped(chars, at + 1, '\''),
        '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
        // A raw string; the prefixes `b` and `c` are left standing.
        'r' if !in_word || (matches!(chars[at - 1], 'b' | 'c') && is_prefix(chars, at - 1)) => {
            let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
            if chars.get(at + 1 + hashes) == Some(&'"') {
                after(at + 2 + hashes, &format!("\"{}", "#".repeat(hashes)))
            } else {
                at
            }
        }
        _ => at,
    }
}

/// Whether the letter here begins a word.
fn is_prefix(chars: &[char], at: usize) -> bool {
    at == 0 || !(chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

/// Behind the next `quote` that no backslash precedes.
fn after_escaped(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Blanks fenced blocks and code spans of Markdown. A span ends on the line it starts on.
fn blank_markdown_code(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let opens = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        let is_code = fence.is_some() || opens.is_some();
        match fence {
            None => fence = opens,
            Some(_) if opens == fence => fence = None,
            Some(_) => {}
        }
        if is_code {
            prose.extend(line.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            push_without_spans(&mut prose, line);
        }
    }
    prose
}

fn push_without_spans(prose: &mut String, line: &str) {
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].chars().take_while(|&c| c == '`').count();
        let mark = &rest[start..start + ticks];
        let Some(length) = rest[start + ticks..].find(mark) else { break };
        let end = start + ticks + length + ticks;
        prose.push_str(&rest[..start]);
        prose.extend(rest[start..end].chars().map(|_| ' '));
        rest = &rest[end..];
    }
    prose.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        SourceFile::new("a.rs", text).code
    }

    #[test]
    fn comments_are_blank() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code("/* never closed"), "               ");
    }

    #[test]
    fn literals_are_blank() {
        assert_eq!(code(r#"f("a\"b", c)"#), "f(      , c)");
        assert_eq!(code("f(r#\"a\"b\"#, c)"), "f(        , c)");
        assert_eq!(code("f(br\"a\\\", c)"), "f(b     , c)");
        assert_eq!(code("['\"', '\\'', 'x', '\\u{1F}']"), "[   ,     ,    ,         ]");
        assert_eq!(code("\"never closed"), "             ");
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        for text in ["fn f<'a>(x: &'a str) -> &'a str {}", "let r#type = for_r;", "let var = 1;"] {
            assert_eq!(code(text), text);
        }
    }

    #[test]
    fn lines_keep_their_numbers() {
        let file = SourceFile::new("a.rs", "\"one\ntwo\"\n/* three\n */ four");
        assert_eq!(file.code_lines().last(), Some((4, "    four")));
    }

    #[test]
    fn markdown_code_is_blank() {
        let file = SourceFile::new("a.md", "see `x` and ``y`z`` here\n```rust\n~~~\ncode\n```\nprose");
        let lines: Vec<_> = file.code.lines().map(str::trim).collect();
        assert_eq!(lines, ["see     and         here", "", "", "", "", "prose"]);
    }

    #[test]
    fn a_word_is_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("unsafe_op_in_unsafe_fn", "unsafe"));
        assert!(has_word("(go!())", "go!"));
        assert!(!has_word("ergo!()", "go!"));
    }

    #[test]
    fn test_code_is_found() {
        let numbers = |path: &str, text: &str| -> Vec<usize> {
            SourceFile::new(path, text).test_lines().iter().map(|(number, _)| *number).collect()
        };
        let text = "a();\n#[cfg(test)]\nmod tests {\n    b();\n}\nc();\n";
        assert_eq!(numbers("crates/log/src/lib.rs", text), [2, 3, 4, 5]);
        assert_eq!(numbers("crates/log/src/lib.rs", "#[cfg(test)]\nmod tests;\nc();\n"), [1, 2]);
        assert_eq!(numbers("crates/log/src/tests.rs", "a();\n"), [1]);
        assert_eq!(numbers("tests/kill.rs", "a();\n"), [1]);
        assert_eq!(numbers("crates/log/src/lib.rs", "a();\n"), [] as [usize; 0]);
    }
}
