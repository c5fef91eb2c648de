//! Words of Lua's source.

use crate::number::parse_number;

/// A word of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// The end of the source.
    End,
    /// A keyword or a sign.
    Sign(&'static str),
    Name(Box<[u8]>),
    Text(Box<[u8]>),
    Number(f64),
    /// A byte that begins nothing: the parser refuses it where it stands, as C's does.
    Other(u8),
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The signs, longer ones before their beginnings.
const SIGNS: [&str; 26] = [
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(", ")", "{",
    "}", "[", "]", ";", ":", ",", ".",
];

/// A text that is no Lua: what is wrong, near which word, in which line.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub text: String,
    pub near: Option<Vec<u8>>,
    pub line: u32,
}

pub(crate) type Lexed<T> = Result<T, SyntaxError>;

#[derive(Debug)]
pub(crate) struct Lexer<'a> {
    source: &'a [u8],
    at: usize,
    pub line: u32,
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

impl<'a> Lexer<'a> {
    pub fn new(source: &'a [u8]) -> Lexer<'a> {
        let mut lexer = Lexer { source, at: 0, line: 1 };
        // A first line that begins with `#` is none of Lua's.
        if source.first() == Some(&b'#') {
            while lexer.peek().is_some_and(|b| b != b'\n') {
                lexer.at += 1;
            }
        }
        lexer
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn error<T>(&self, text: &str, near: Option<&[u8]>) -> Lexed<T> {
        Err(SyntaxError { text: text.into(), near: near.map(<[u8]>::to_vec), line: self.line })
    }

    fn newline(&mut self) {
        let first = self.peek();
        self.at += 1;
        if let Some(second) = self.peek()
            && matches!(second, b'\n' | b'\r')
            && Some(second) != first
        {
            self.at += 1;
        }
        self.line += 1;
    }

    /// The next word, and the place in the source where it begins.
    pub fn next(&mut self) -> Lexed<(Token, usize)> {
        loop {
            let start = self.at;
            let Some(b) = self.peek() else { return Ok((Token::End, start)) };
            match b {
                b'\n' | b'\r' => self.newline(),
                b' ' | b'\t' | 0x0b | 0x0c => self.at += 1,
                b'-' if self.source[start..].starts_with(b"--") => self.comment()?,
                b'[' if self.long_level(start).is_some() => {
                    let level = self.long_level(start).unwrap_or(0);
                    return Ok((Token::Text(self.long(level, true)?), start));
                }
                b'[' if self.source.get(start + 1) == Some(&b'=') => {
                    let end = start + 1 + self.source[start + 1..].iter().take_while(|b| **b == b'=').count();
                    return self.error("invalid long string delimiter", Some(&self.source[start..end]));
                }
                b'"' | b'\'' => return Ok((Token::Text(self.quoted(b)?), start)),
                b'0'..=b'9' => return Ok((Token::Number(self.number()?), start)),
                b'.' if self.source.get(start + 1).is_some_and(u8::is_ascii_digit) => {
                    return Ok((Token::Number(self.number()?), start));
                }
                b if is_name(b) => {
                    while self.peek().is_some_and(is_name) {
                        self.at += 1;
                    }
                    let word = &self.source[start..self.at];
                    return Ok((
                        match KEYWORDS.iter().find(|k| k.as_bytes() == word) {
                            Some(keyword) => Token::Sign(keyword),
                            None => Token::Name(word.into()),
                        },
                        start,
                    ));
                }
                b => {
                    let rest = &self.source[start..];
                    let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(sign.as_bytes())) else {
                        self.at += 1;
                        return Ok((Token::Other(b), start));
                    };
                    self.at += sign.len();
                    return Ok((Token::Sign(sign), start));
                }
            }
        }
    }

    /// The text of the source from a word's beginning to here.
    pub fn text_from(&self, start: usize) -> &'a [u8] {
        &self.source[start.min(self.at)..self.at]
    }

    /// The level of the long bracket that opens at a place, if one does.
    fn long_level(&self, at: usize) -> Option<usize> {
        let rest = self.source.get(at + 1..)?;
        let level = rest.iter().take_while(|b| **b == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn comment(&mut self) -> Lexed<()> {
        self.at += 2;
        if self.peek() == Some(b'[')
            && let Some(level) = self.long_level(self.at)
        {
            self.long(level, false)?;
            return Ok(());
        }
        while self.peek().is_some_and(|b| !matches!(b, b'\n' | b'\r')) {
            self.at += 1;
        }
        Ok(())
    }

    fn long(&mut self, level: usize, is_text: bool) -> Lexed<Box<[u8]>> {
        let mut out = Vec::new();
        self.at += level + 2;
        if matches!(self.peek(), Some(b'\n' | b'\r')) {
            self.newline();
        }
        loop {
            match self.peek() {
                None => {
                    let what = if is_text { "unfinished long string" } else { "unfinished long comment" };
                    return self.error(what, Some(b"<eof>"));
                }
                Some(b']') => {
                    let rest = &self.source[self.at + 1..];
                    let signs = rest.iter().take(level).take_while(|b| **b == b'=').count();
                    if signs == level && rest.get(level) == Some(&b']') {
                        self.at += level + 2;
                        return Ok(out.into());
                    }
                    out.push(b']');
                    self.at += 1;
                }
                Some(b'\n' | b'\r') => {
                    self.newline();
                    out.push(b'\n');
                }
                Some(b) => {
                    if is_text {
                        out.push(b);
                    }
                    self.at += 1;
                }
            }
        }
    }

    fn quoted(&mut self, quote: u8) -> Lexed<Box<[u8]>> {
        let start = self.at;
        let mut out = Vec::new();
        self.at += 1;
        loop {
            let Some(b) = self.peek() else {
                return self.error("unfinished string", Some(b"<eof>"));
            };
            match b {
                b'\n' | b'\r' => return self.error("unfinished string", Some(&self.source[start..self.at])),
                b'\\' => {
                    self.at += 1;
                    let Some(escape) = self.peek() else { continue };
                    self.at += 1;
                    match escape {
                        b'a' => out.push(7),
                        b'b' => out.push(8),
                        b'f' => out.push(12),
                        b'n' => out.push(b'\n'),
                        b'r' => out.push(b'\r'),
                        b't' => out.push(b'\t'),
                        b'v' => out.push(11),
                        b'\n' | b'\r' => {
                            self.at -= 1;
                            self.newline();
                            out.push(b'\n');
                        }
                        b'0'..=b'9' => {
                            let mut code = u32::from(escape - b'0');
                            for _ in 0..2 {
                                let Some(digit @ b'0'..=b'9') = self.peek() else { break };
                                code = code * 10 + u32::from(digit - b'0');
                                self.at += 1;
                            }
                            let Ok(byte) = u8::try_from(code) else {
                                return self
                                    .error("escape sequence too large", Some(&self.source[start..self.at]));
                            };
                            out.push(byte);
                        }
                        other => out.push(other),
                    }
                }
                b => {
                    self.at += 1;
                    if b == quote {
                        return Ok(out.into());
                    }
                    out.push(b);
                }
            }
        }
    }

    fn number(&mut self) -> Lexed<f64> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit() || b == b'.') {
            self.at += 1;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
        }
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        let text = &self.source[start..self.at];
        match parse_number(text) {
            Some(number) => Ok(number),
            None => self.error("malformed number", Some(text)),
        }
    }
}
