//! Glob patterns, with exactly the dialect of Redis: `*`, `?`, `[a-z]`, `[^…]` and `\` before a literal.
//!
//! A pattern is compiled once for each command into the parts between its stars. The first and the last part are
//! compared where they must stand. Each part between is searched for from the end of the one before: leftmost is
//! enough, as an earlier end leaves the later parts more room. Literal parts are found in linear time; parts with `?`
//! or `[…]` by a bit for each element (Baeza-Yates and Gonnet's Shift-And), 64 elements a word. So a match takes
//! time in proportion to the text, and [`MAX_ELEMENTS`] bounds the factor.

use memchr::memmem::Finder;

use crate::shape::Refusal;

/// Most elements that the parts with `?` or `[…]` between two stars may have together.
const MAX_ELEMENTS: usize = 4096;
/// Longest pattern, bytes: a key of 64 KiB with each byte in a class, and more.
const MAX_BYTES: usize = 256 << 10;
const TOO_LONG: Refusal = Refusal("ERR the pattern exceeds the limit of 256 KiB: shorten it");
const TOO_COMPLEX: Refusal = Refusal(
    "ERR the pattern is too complex: between its first and last star, parts with '?' or '[' may have 4096 elements \
     together: shorten it",
);

/// A pattern, ready to be matched.
#[derive(Debug)]
pub(crate) struct Glob {
    /// The elements before the first star.
    first: Vec<Element>,
    /// The parts between two stars.
    middle: Vec<Part>,
    /// The elements after the last star; `None` without a star.
    last: Option<Vec<Element>>,
    /// True if the pattern matches the empty text: in Redis 7.0 only one star or nothing does, however many stars there are.
    matches_empty: bool,
}

/// Matches a text against a pattern; false for a pattern that is too long or too complex.
pub fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    Glob::new(pattern).is_ok_and(|glob| glob.matches(text))
}

/// An element that matches one byte.
#[derive(Debug)]
enum Element {
    Literal(u8),
    Any,
    Class(Box<[u64; 4]>),
}

impl Element {
    fn has(&self, byte: u8) -> bool {
        match self {
            Element::Literal(literal) => *literal == byte,
            Element::Any => true,
            Element::Class(bits) => bits[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1,
        }
    }
}

/// Something to be found anywhere.
#[derive(Debug)]
enum Part {
    Bytes(Box<Finder<'static>>),
    Elements(Automaton),
}

impl Part {
    fn of(elements: &[Element]) -> Part {
        let literal = |element: &Element| match element {
            Element::Literal(byte) => Some(*byte),
            _ => None,
        };
        match elements.iter().map(literal).collect::<Option<Vec<u8>>>() {
            Some(bytes) => Part::Bytes(Box::new(Finder::new(&bytes).into_owned())),
            None => Part::Elements(Automaton::of(elements)),
        }
    }

    /// The end of its leftmost place in the text.
    fn find(&self, text: &[u8]) -> Option<usize> {
        match self {
            Part::Bytes(finder) => finder.find(text).map(|at| at + finder.needle().len()),
            Part::Elements(automaton) => automaton.find(text),
        }
    }
}

/// For each byte, which elements it matches: one bit an element.
#[derive(Debug)]
struct Automaton {
    words: usize,
    masks: Box<[u64]>,
    /// The last element's bit in the last word.
    end: u64,
}

impl Automaton {
    fn of(elements: &[Element]) -> Automaton {
        let words = elements.len().div_ceil(64);
        let mut masks = vec![0; 256 * words].into_boxed_slice();
        for (mask, byte) in masks.chunks_exact_mut(words).zip(0..=u8::MAX) {
            for (n, element) in elements.iter().enumerate() {
                mask[n / 64] |= u64::from(element.has(byte)) << (n % 64);
            }
        }
        Automaton { words, masks, end: 1 << ((elements.len() - 1) % 64) }
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        let mut state = vec![0u64; self.words];
        for (at, byte) in text.iter().enumerate() {
            let mask = &self.masks[usize::from(*byte) * self.words..][..self.words];
            // A match may begin at every byte.
            let mut carry = 1;
            for (state, mask) in state.iter_mut().zip(mask) {
                (*state, carry) = ((*state << 1 | carry) & mask, *state >> 63);
            }
            if state[self.words - 1] & self.end != 0 {
                return Some(at + 1);
            }
        }
        None
    }
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// As [`Glob::check`].
    pub(crate) fn new(pattern: &[u8]) -> Result<Glob, Refusal> {
        Glob::check(pattern)?;
        let (mut parts, mut rest) = (vec![Vec::new()], pattern);
        while let [head, ..] = rest {
            if *head == b'*' {
                parts.push(Vec::new());
                rest = &rest[1..];
                continue;
            }
            parts.last_mut().into_iter().for_each(|part| part.push(element(rest)));
            rest = &rest[width(rest)..];
        }
        let last = if parts.len() > 1 { parts.pop() } else { None };
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        let middle = parts.filter(|part| !part.is_empty()).map(|part| Part::of(&part)).collect();
        Ok(Glob { first, middle, last, matches_empty: matches!(pattern, [] | [b'*']) })
    }

    /// The most steps that a byte of text takes: a bound of the time that a match takes.
    pub(crate) fn steps(&self) -> usize {
        let steps = |part: &Part| match part {
            Part::Elements(automaton) => automaton.words,
            Part::Bytes(_) => 1,
        };
        self.middle.iter().map(steps).max().unwrap_or(1)
    }

    /// Checks a pattern without compiling it.
    ///
    /// # Errors
    /// It is longer than [`MAX_BYTES`], or its parts with `?` or `[…]` between two stars have more than [`MAX_ELEMENTS`]
    /// elements.
    pub(crate) fn check(pattern: &[u8]) -> Result<(), Refusal> {
        if pattern.len() > MAX_BYTES {
            return Err(TOO_LONG);
        }
        // The elements of the current part, and whether all are literal.
        let (mut count, mut is_plain, mut is_first, mut total, mut rest) = (0, true, true, 0, pattern);
        while let [head, ..] = rest {
            if *head == b'*' {
                total += if is_plain || is_first { 0 } else { count };
                (count, is_plain, is_first) = (0, true, false);
                rest = &rest[1..];
                continue;
            }
            is_plain &= !matches!(head, b'?' | b'[');
            count += 1;
            rest = &rest[width(rest)..];
        }
        if total > MAX_ELEMENTS { Err(TOO_COMPLEX) } else { Ok(()) }
    }

    /// Says whether the whole text matches.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        if text.is_empty() {
            return self.matches_empty;
        }
        let all = |elements: &[Element], text: &[u8]| {
            elements.iter().zip(text).all(|(element, byte)| element.has(*byte))
        };
        let Some(last) = &self.last else { return text.len() == self.first.len() && all(&self.first, text) };
        let Some(room) = text.len().checked_sub(last.len()) else { return false };
        let (text, tail) = text.split_at(room);
        let Some((head, mut rest)) = text.split_at_checked(self.first.len()) else { return false };
        all(&self.first, head)
            && all(last, tail)
            && self.middle.iter().all(|part| match part.find(rest) {
                Some(end) => {
                    rest = &rest[end..];
                    true
                }
                None => false,
            })
    }
}

/// The bytes of pattern in an element that is not a star; 1 at least.
fn width(pattern: &[u8]) -> usize {
    match pattern {
        [b'\\', _, ..] => 2,
        [b'[', ..] => class(pattern, |_, _| ()),
        _ => 1,
    }
}

/// The first element of a pattern that does not begin with a star.
fn element(pattern: &[u8]) -> Element {
    match pattern {
        [b'?', ..] => Element::Any,
        [b'\\', literal, ..] | [literal, ..] if pattern[0] != b'[' => Element::Literal(*literal),
        _ => {
            let mut bits = [0u64; 4];
            let mut set = |byte: u8| bits[usize::from(byte >> 6)] |= 1 << (byte & 63);
            // Redis compares signed characters.
            class(pattern, |a, b| (a.min(b)..=a.max(b)).for_each(|byte| set(byte as u8)));
            if pattern.get(1) == Some(&b'^') {
                bits.iter_mut().for_each(|bits| *bits = !*bits);
            }
            Element::Class(Box::new(bits))
        }
    }
}

/// Walks a class in brackets: gives the ends of each range and says how many bytes of pattern the class has. One that is
/// not closed ends with the pattern.
fn class(pattern: &[u8], mut range: impl FnMut(i8, i8)) -> usize {
    let mut at = if pattern.get(1) == Some(&b'^') { 2 } else { 1 };
    loop {
        match pattern[at.min(pattern.len())..] {
            [b'\\', literal, ..] => {
                range(literal as i8, literal as i8);
                at += 2;
            }
            [b']', ..] => return at + 1,
            [] => return pattern.len(),
            [a, b'-', b, ..] => {
                range(a as i8, b as i8);
                at += 3;
            }
            [literal, ..] => {
                range(literal as i8, literal as i8);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Glob::new(pattern).unwrap().matches(text)
    }

    /// Matches one byte against the first element of a pattern that is not a star; also says how many bytes of
    /// pattern the element has.
    fn step(pattern: &[u8], byte: u8) -> (bool, usize) {
        match pattern {
            [b'?', ..] => (true, 1),
            [b'[', ..] => class(pattern, byte),
            [b'\\', literal, ..] => (*literal == byte, 2),
            [literal, ..] => (*literal == byte, 1),
            [] => (false, 0),
        }
    }

    /// As [`step`], for a class in brackets. One that is not closed ends with the pattern.
    fn class(pattern: &[u8], byte: u8) -> (bool, usize) {
        let mut at = 1;
        let negated = pattern.get(at) == Some(&b'^');
        at += usize::from(negated);
        let mut found = false;
        loop {
            match pattern[at.min(pattern.len())..] {
                [b'\\', literal, ..] => {
                    found |= literal == byte;
                    at += 2;
                }
                [b']', ..] => return (found != negated, at + 1),
                [] => return (found != negated, pattern.len()),
                [a, b'-', b, ..] => {
                    // Redis compares signed characters.
                    let (a, b, c) = (a as i8, b as i8, byte as i8);
                    found |= (a.min(b)..=a.max(b)).contains(&c);
                    at += 3;
                }
                [literal, ..] => {
                    found |= literal == byte;
                    at += 1;
                }
            }
        }
    }

    /// The definition: try every length for every star.
    fn defined(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|n| defined(rest, &text[n..])),
            (_, []) => false,
            (_, [byte, rest @ ..]) => {
                let (matched, width) = step(pattern, *byte);
                matched && defined(&pattern[width..], rest)
            }
        }
    }

    #[test]
    fn the_dialect_of_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a\\", "a\\", true),
            ("[\\]]", "]", true),
            ("[]", "a", false),
            ("[abc", "b", true),
            ("[^", "b", true),
            ("[a-", "-", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
            ("", "a", false),
            ("user:*:name", "user:1:2:name", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// The pattern and keys of an attack. With 4 G steps for each key, as pattern times text are, this takes minutes.
    #[test]
    fn many_stars_take_time_in_proportion_to_the_text() {
        let text = "a".repeat(64 << 10);
        let plain = format!("*{}b", "a*".repeat(32_000));
        let classes = format!("*{}b", "[ab]?a*".repeat(1_365));
        let one = format!("*{}b*", "?".repeat(MAX_ELEMENTS - 1));
        for pattern in [plain, classes, one] {
            let glob = Glob::new(pattern.as_bytes()).unwrap();
            assert!((0..20).all(|_| !glob.matches(text.as_bytes())));
        }
    }

    #[test]
    fn what_would_take_long_is_refused() {
        let refused = |pattern: String| Glob::new(pattern.as_bytes()).err();
        assert_eq!(refused(format!("*{}*", "?".repeat(MAX_ELEMENTS + 1))), Some(TOO_COMPLEX));
        assert_eq!(refused("*?".repeat(MAX_ELEMENTS + 2)), Some(TOO_COMPLEX));
        assert_eq!(refused("?".repeat(MAX_BYTES + 1)), Some(TOO_LONG));
        // What stands at an end is compared once, and what is literal is searched for in linear time.
        for pattern in ["?".repeat(60_000), format!("*{}*", "a".repeat(60_000)), "*?".repeat(MAX_ELEMENTS)] {
            assert!(refused(pattern).is_none());
        }
    }

    #[test]
    fn long_parts_are_found_across_words() {
        let part = "ab?d".repeat(50);
        for before in [0, 1, 63, 64, 65] {
            let text = format!("{}{}end", "abcd".repeat(before), "abxd".repeat(50));
            assert!(matches(format!("*{part}*end").as_bytes(), text.as_bytes()), "{before}");
            assert!(!matches(format!("*{part}e*end").as_bytes(), text.as_bytes()), "{before}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn a_compiled_pattern_finds_what_the_definition_finds(pattern in r"[ab*?\[\]^\\-]{0,8}", text in "[ab\\]-]{0,7}") {
            // No text at all is matched by one star alone, as Redis 7.0 has it.
            let expected = match &*text {
                "" => pattern.is_empty() || pattern == "*",
                text => defined(pattern.as_bytes(), text.as_bytes()),
            };
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected);
        }
    }
}
