//! Words of a line, quoted as people quote them: inline commands, and the first lines of scripts.

use std::ops::Range;

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Splits a line into words as Redis's `sdssplitargs` does: words may be quoted, in double quotes with escapes. The bytes
/// of the words are appended to `words`, and `ended` is given the place of each. `None` if a quote is not closed or a closing one
/// is not followed by space.
pub fn split_words(line: &[u8], words: &mut Vec<u8>, mut ended: impl FnMut(Range<usize>)) -> Option<()> {
    let mut rest = line;
    loop {
        while let Some((_, tail)) = rest.split_first().filter(|(b, _)| is_space(**b)) {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = words.len();
        let ends_word = |rest: &[u8]| rest.first().is_none_or(|b| is_space(*b));
        while !ends_word(rest) {
            rest = match rest {
                [b'"', tail @ ..] => double_quoted(tail, words).filter(|tail| ends_word(tail))?,
                [b'\'', tail @ ..] => single_quoted(tail, words).filter(|tail| ends_word(tail))?,
                [byte, tail @ ..] => {
                    words.push(*byte);
                    tail
                }
                [] => rest,
            };
        }
        ended(start..words.len());
    }
}

/// Copies up to the closing quote; what follows it, or `None` if there is none.
fn double_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|d| d as u8);
    loop {
        let (byte, tail) = match rest {
            [b'"', tail @ ..] => return Some(tail),
            [b'\\', b'x', a, b, tail @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
                (hex(*a)? << 4 | hex(*b)?, tail)
            }
            [b'\\', escaped, tail @ ..] => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, tail)
            }
            [byte, tail @ ..] => (*byte, tail),
            [] => return None,
        };
        words.push(byte);
        rest = tail;
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (byte, tail) = match rest {
            [b'\'', tail @ ..] => return Some(tail),
            [b'\\', b'\'', tail @ ..] => (b'\'', tail),
            [byte, tail @ ..] => (*byte, tail),
            [] => return None,
        };
        words.push(byte);
        rest = tail;
    }
}
