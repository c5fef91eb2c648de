//! Lua 5.1's patterns, with a budget.
//!
//! The C library's matcher backtracks without end on a pattern such as `.-.-.-.-x`, inside one call, where no
//! instruction hook can stop it. This one does the same in the same order and counts its steps.

/// The reason for which a match was given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PatternError {
    /// The pattern is wrong, in Lua's words.
    Malformed(&'static str),
    /// The steps are used up.
    Exhausted,
}

use PatternError::{Exhausted, Malformed};

type Matched = Result<Option<usize>, PatternError>;

/// The most captures of a pattern.
const MAX_CAPTURES: usize = 32;
/// The deepest nesting of a pattern's items on the stack.
const MAX_DEPTH: u32 = 200;
const ESCAPE: u8 = b'%';

/// A capture of a match: its start and what it spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    /// Offset of the first byte.
    pub start: usize,
    /// The end of the capture.
    pub span: Span,
}

/// The span of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// Not closed yet.
    Open,
    /// `()`: the position is what is captured.
    Position,
    /// A number of bytes.
    Bytes(usize),
}

/// A search.
#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    depth: u32,
    /// The steps that may still be taken.
    pub steps: u64,
}

impl<'a> Matcher<'a> {
    /// A search for a pattern without its anchor.
    pub(crate) fn new(subject: &'a [u8], pattern: &'a [u8], steps: u64) -> Matcher<'a> {
        Matcher { subject, pattern, captures: Vec::new(), depth: 0, steps }
    }

    /// The first match that begins at `from` or later, or exactly there if `anchored`: where it begins and
    /// ends. The captures stand in [`Matcher::captures`] then.
    pub(crate) fn find(
        &mut self,
        from: usize,
        anchored: bool,
    ) -> Result<Option<(usize, usize)>, PatternError> {
        let mut at = from;
        loop {
            self.captures.clear();
            if let Some(end) = self.match_here(at, 0)? {
                if self.captures.iter().any(|c| c.span == Span::Open) {
                    return Err(Malformed("unfinished capture"));
                }
                return Ok(Some((at, end)));
            }
            if anchored || at >= self.subject.len() {
                return Ok(None);
            }
            at += 1;
        }
    }

    /// The captures of the match.
    pub(crate) fn captures(&self) -> &[Capture] {
        &self.captures
    }

    fn step(&mut self) -> Result<(), PatternError> {
        self.steps = self.steps.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// Takes steps for the bytes of the pattern that are read.
    fn spend(&mut self, steps: usize) -> Result<(), PatternError> {
        self.steps = self.steps.checked_sub(steps as u64).ok_or(Exhausted)?;
        Ok(())
    }

    fn match_here(&mut self, s: usize, p: usize) -> Matched {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Malformed("pattern too complex"));
        }
        let result = self.match_items(s, p);
        self.depth -= 1;
        result
    }

    fn match_items(&mut self, mut s: usize, mut p: usize) -> Matched {
        loop {
            self.step()?;
            let Some(&c) = self.pattern.get(p) else { return Ok(Some(s)) };
            match c {
                b'(' if self.pattern.get(p + 1) == Some(&b')') => {
                    return self.open_capture(s, p + 2, Span::Position);
                }
                b'(' => return self.open_capture(s, p + 1, Span::Open),
                b')' => return self.close_capture(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => {
                    return Ok((s == self.subject.len()).then_some(s));
                }
                ESCAPE => match self.pattern.get(p + 1) {
                    Some(b'b') => match self.match_balance(s, p + 2)? {
                        Some(end) => {
                            s = end;
                            p += 4;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        if self.pattern.get(p) != Some(&b'[') {
                            return Err(Malformed("missing '[' after '%f' in pattern"));
                        }
                        let end = self.class_end(p)?;
                        self.spend((end - p) / 2)?;
                        let before = if s == 0 { 0 } else { self.subject[s - 1] };
                        let here = self.subject.get(s).copied().unwrap_or(0);
                        if self.in_set(before, p, end - 1) || !self.in_set(here, p, end - 1) {
                            return Ok(None);
                        }
                        p = end;
                        continue;
                    }
                    Some(d) if d.is_ascii_digit() => match self.match_capture(s, *d)? {
                        Some(end) => {
                            s = end;
                            p += 2;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    _ => {}
                },
                _ => {}
            }
            let end = self.class_end(p)?;
            self.spend((end - p) / 8)?;
            let fits = self.single(s, p, end)?;
            match self.pattern.get(end) {
                Some(b'?') => {
                    if fits && let Some(found) = self.match_here(s + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.max_expand(s, p, end),
                Some(b'+') => return if fits { self.max_expand(s + 1, p, end) } else { Ok(None) },
                Some(b'-') => return self.min_expand(s, p, end),
                _ if !fits => return Ok(None),
                _ => {
                    s += 1;
                    p = end;
                }
            }
        }
    }

    /// The end of the single-character class at `p`.
    fn class_end(&self, p: usize) -> Result<usize, PatternError> {
        match self.pattern[p] {
            ESCAPE if p + 1 >= self.pattern.len() => Err(Malformed("malformed pattern (ends with '%')")),
            ESCAPE => Ok(p + 2),
            b'[' => {
                let mut p = p + 1;
                if self.pattern.get(p) == Some(&b'^') {
                    p += 1;
                }
                loop {
                    // The first character of a set is part of it even if it is a bracket.
                    let c = *self.pattern.get(p).ok_or(MISSING)?;
                    p += 1;
                    if c == ESCAPE {
                        if p >= self.pattern.len() {
                            return Err(MISSING);
                        }
                        p += 1;
                    }
                    match self.pattern.get(p) {
                        Some(b']') => return Ok(p + 1),
                        Some(_) => {}
                        None => return Err(MISSING),
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    fn single(&mut self, s: usize, p: usize, end: usize) -> Result<bool, PatternError> {
        let Some(&c) = self.subject.get(s) else { return Ok(false) };
        Ok(match self.pattern[p] {
            b'.' => true,
            ESCAPE => in_class(c, self.pattern[p + 1]),
            b'[' => {
                self.spend((end - p) / 4)?;
                self.in_set(c, p, end - 1)
            }
            literal => literal == c,
        })
    }

    /// True if `c` is in the set from the bracket at `p` to the one at `close`.
    fn in_set(&self, c: u8, mut p: usize, close: usize) -> bool {
        let mut answer = true;
        if self.pattern[p + 1] == b'^' {
            answer = false;
            p += 1;
        }
        p += 1;
        while p < close {
            if self.pattern[p] == ESCAPE {
                p += 1;
                if in_class(c, self.pattern[p]) {
                    return answer;
                }
            } else if p + 2 < close && self.pattern[p + 1] == b'-' {
                if (self.pattern[p]..=self.pattern[p + 2]).contains(&c) {
                    return answer;
                }
                p += 2;
            } else if self.pattern[p] == c {
                return answer;
            }
            p += 1;
        }
        !answer
    }

    fn match_balance(&mut self, s: usize, p: usize) -> Matched {
        let (Some(&open), Some(&close)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(Malformed("unbalanced pattern"));
        };
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut level = 1;
        for (at, &c) in self.subject.iter().enumerate().skip(s + 1) {
            self.step()?;
            if c == close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(at + 1));
                }
            } else if c == open {
                level += 1;
            }
        }
        Ok(None)
    }

    fn max_expand(&mut self, s: usize, p: usize, end: usize) -> Matched {
        let mut n = 0;
        while self.single(s + n, p, end)? {
            self.step()?;
            n += 1;
        }
        loop {
            if let Some(found) = self.match_here(s + n, end + 1)? {
                return Ok(Some(found));
            }
            if n == 0 {
                return Ok(None);
            }
            n -= 1;
        }
    }

    fn min_expand(&mut self, mut s: usize, p: usize, end: usize) -> Matched {
        loop {
            if let Some(found) = self.match_here(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.single(s, p, end)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open_capture(&mut self, s: usize, p: usize, span: Span) -> Matched {
        if self.captures.len() >= MAX_CAPTURES {
            return Err(Malformed("too many captures"));
        }
        let level = self.captures.len();
        self.captures.push(Capture { start: s, span });
        let found = self.match_here(s, p)?;
        if found.is_none() {
            self.captures.truncate(level);
        }
        Ok(found)
    }

    fn close_capture(&mut self, s: usize, p: usize) -> Matched {
        let level = self.captures.iter().rposition(|c| c.span == Span::Open);
        let level = level.ok_or(Malformed("invalid pattern capture"))?;
        self.captures[level].span = Span::Bytes(s - self.captures[level].start);
        let found = self.match_here(s, p)?;
        if found.is_none() {
            self.captures[level].span = Span::Open;
        }
        Ok(found)
    }

    fn match_capture(&mut self, s: usize, digit: u8) -> Matched {
        let capture = (digit as usize).checked_sub(b'1' as usize).and_then(|i| self.captures.get(i));
        let (start, len) = match capture {
            Some(&Capture { start, span: Span::Bytes(len) }) => (start, len),
            Some(Capture { span: Span::Position, .. }) => return Ok(None),
            _ => return Err(Malformed("invalid capture index")),
        };
        self.steps = self.steps.checked_sub(len as u64).ok_or(Exhausted)?;
        let same = self.subject[s..].starts_with(&self.subject[start..start + len]);
        Ok(same.then_some(s + len))
    }
}

const MISSING: PatternError = Malformed("malformed pattern (missing ']')");

/// The classes of the C locale.
fn in_class(c: u8, class: u8) -> bool {
    let answer = match class.to_ascii_lowercase() {
        b'a' => c.is_ascii_alphabetic(),
        b'c' => c.is_ascii_control(),
        b'd' => c.is_ascii_digit(),
        b'l' => c.is_ascii_lowercase(),
        b'p' => c.is_ascii_punctuation(),
        b's' => c.is_ascii_whitespace() || c == 0x0b,
        b'u' => c.is_ascii_uppercase(),
        b'w' => c.is_ascii_alphanumeric(),
        b'x' => c.is_ascii_hexdigit(),
        b'z' => c == 0,
        _ => return class == c,
    };
    answer != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(subject: &str, pattern: &str) -> Result<Option<(usize, usize)>, PatternError> {
        Matcher::new(subject.as_bytes(), pattern.as_bytes(), 1_000_000).find(0, false)
    }

    /// Every answer is the C library's, through a plain interpreter.
    #[test]
    fn agrees_with_the_c_library() {
        let lua = mlua::Lua::new();
        let native: mlua::Function =
            lua.load("local s, p = ... return string.find(s, p)").into_function().unwrap();
        let pieces = [
            "a", ".", "%a", "%d", "%s", "[a-c]", "[^a]", "[]]", "%b()", "%f[%w]", "(", ")", "()", "%1", "$",
            "x", "[",
        ];
        let suffixes = ["", "*", "+", "-", "?"];
        let mut seed = 7u64;
        let mut next = |n: usize| {
            seed = crate::number::mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
            (seed % n as u64) as usize
        };
        for _ in 0..20_000 {
            let mut pattern = String::new();
            for _ in 0..1 + next(5) {
                pattern.push_str(pieces[next(pieces.len())]);
                pattern.push_str(suffixes[next(suffixes.len())]);
            }
            // Without any of these the C library takes the pattern for plain text.
            if !pattern.contains(['^', '$', '*', '+', '?', '.', '(', '[', '%', '-']) {
                continue;
            }
            let subject: String =
                (0..next(10)).map(|_| ['a', 'b', 'x', '(', ')', ']', ' ', '1'][next(8)]).collect();
            let theirs = native.call::<(Option<usize>, Option<usize>)>((&*subject, &*pattern));
            match (find(&subject, &pattern), theirs) {
                (Ok(ours), Ok(theirs)) => {
                    let theirs = theirs.0.zip(theirs.1).map(|(a, b)| (a - 1, b));
                    assert_eq!(ours, theirs, "{subject:?} {pattern:?}");
                }
                (Err(Malformed(text)), Err(error)) => {
                    assert!(error.to_string().contains(text), "{text} {error}: {subject:?} {pattern:?}");
                }
                (ours, theirs) => panic!("{ours:?} {theirs:?}: {subject:?} {pattern:?}"),
            }
        }
    }

    #[test]
    fn endless_backtracking_ends() {
        let pattern = format!("{}x", ".-".repeat(20));
        assert_eq!(find(&"a".repeat(2000), &pattern), Err(Exhausted));
    }
}
