//! Glob patterns, with exactly the dialect of Redis: `*`, `?`, `[a-z]`, `[^…]` and `\` before a literal.
//!
//! A failed match goes back to the last star alone, which is enough (an earlier star could only give up bytes
//! that the last one can take), so the time is at most pattern times text and nothing recurses.

/// Whether the whole `text` matches `pattern`.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            if p == pattern.len() {
                return true;
            }
            continue;
        }
        match (text.get(t), pattern.get(p)) {
            (None, None) => return true,
            (Some(&byte), Some(_)) => {
                let (matched, width) = step(&pattern[p..], byte);
                if matched {
                    p += width;
                    t += 1;
                    continue;
                }
            }
            // The text is used up and the pattern wants more: giving a star more bytes cannot help.
            (None, Some(_)) => return false,
            (Some(_), None) => {}
        }
        let Some((after, from)) = &mut star else { return false };
        *from += 1;
        (p, t) = (*after, *from);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(10_000).as_bytes()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn backtracking_finds_what_the_definition_finds(pattern in r"[ab*?\[\]^\\-]{0,8}", text in "[ab\\]-]{0,7}") {
            prop_assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                defined(pattern.as_bytes(), text.as_bytes())
            );
        }
    }
}
