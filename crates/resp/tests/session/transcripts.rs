//! Golden transcripts: one scenario a file, in `transcripts/`, run against sessions with the reference executor
//! behind them.
//!
//! The language, line by line:
//! - `# …` and empty lines are comments;
//! - `> words` sends a command as connection `a` and lets everything settle; words are quoted as inline commands
//!   are; `b> words` sends it as connection `b`, and so on;
//! - `>> words` sends it without letting anything settle, so that what follows is pipelined behind it;
//! - `!> words` is the same, for what is answered differently from Redis in a transcript that `transcripts/record.py`
//!   records from it;
//! - `! bytes` sends bytes with Rust's escapes, as they are, and settles;
//! - `< line` is the next line of the connection that sent last, or `b< line` of connection `b`; what is not
//!   printable is escaped; `< ` with `...` in it matches anything there; everything received must be expected;
//! - `@ 1500` lets so many milliseconds pass;
//! - `weather fair|busy|refused|reversed` is how the engine answers from here on;
//! - `password secret` requires a password and opens the connections anew;
//! - `closed` or `b closed`: the connection is to be closed.

use std::path::PathBuf;

use crate::support::{Server, Weather};
use ordain_resp::Fate;

struct Run {
    server: Server,
    last: usize,
    /// Received by each connection and not yet expected.
    lines: Vec<Vec<String>>,
}

impl Run {
    fn settle(&mut self) {
        self.server.settle();
        for client in 0..self.lines.len() {
            let text = self.server.take(client);
            self.lines[client].extend(text.lines().map(str::to_string));
        }
    }

    fn step(&mut self, line: &str) -> Result<(), String> {
        let line = if line.starts_with("!>") { &line[1..] } else { line };
        let (client, rest) = match line.as_bytes() {
            [name @ b'a'..=b'd', b'>' | b'<' | b'!' | b' ', ..] => (usize::from(name - b'a'), &line[1..]),
            _ => (self.last, line),
        };
        if line.starts_with(['>', '!']) {
            self.last = 0;
        }
        let client = if line.starts_with(['>', '!']) { 0 } else { client };
        if let Some(words) = rest.strip_prefix(">>") {
            self.last = client;
            let words = words_of(words);
            self.server.command(client, &words.iter().map(|w| &**w).collect::<Vec<_>>());
        } else if let Some(words) = rest.strip_prefix('>') {
            self.last = client;
            let words = words_of(words);
            self.server.command(client, &words.iter().map(|w| &**w).collect::<Vec<_>>());
            self.settle();
        } else if let Some(bytes) = rest.strip_prefix("! ") {
            self.last = client;
            self.server.send(client, &unescape(bytes));
            self.settle();
        } else if let Some(expected) = rest.strip_prefix('<') {
            let expected = expected.strip_prefix(' ').unwrap_or(expected);
            if self.lines[client].is_empty() {
                return Err(format!("expected {expected:?}, received nothing"));
            }
            let got = self.lines[client].remove(0);
            let fits = fits(expected, &got);
            if !fits {
                return Err(format!(
                    "expected {expected:?}, received {got:?}, then {:?}",
                    self.lines[client]
                ));
            }
            return Ok(());
        } else if let Some(ms) = rest.strip_prefix("@ ") {
            self.server.now.0 += 1000 * ms.parse::<u64>().map_err(|e| e.to_string())?;
        } else if let Some(weather) = rest.strip_prefix("weather ") {
            self.server.weather = match weather {
                "fair" => Weather::Fair,
                "busy" => Weather::Busy,
                "refused" => Weather::Refused,
                "reversed" => Weather::Reversed,
                _ => return Err("unknown weather".into()),
            };
        } else if let Some(password) = rest.strip_prefix("password ") {
            self.server.require_password(password);
        } else if rest.trim() == "closed" {
            let fate = self.server.clients[client].session.fate();
            if fate != Fate::Close {
                return Err(format!("the connection is {fate:?}"));
            }
        } else {
            return Err("not a line of a transcript".into());
        }
        Ok(())
    }
}

/// Whether a line is as expected, where `...` stands for anything.
fn fits(expected: &str, got: &str) -> bool {
    match expected.split_once("...") {
        None => expected == got,
        Some((start, rest)) => {
            let tail = got.strip_prefix(start);
            tail.is_some_and(|tail| {
                tail.char_indices().map(|(at, _)| at).chain([tail.len()]).any(|at| fits(rest, &tail[at..]))
            })
        }
    }
}

fn words_of(text: &str) -> Vec<Vec<u8>> {
    use ordain_resp::codec::{RequestLimits, RequestParser, Step};
    let line = format!("{text}\n");
    let mut parser = RequestParser::default();
    match parser.next(line.as_bytes(), RequestLimits::FULL) {
        Step::Command { .. } => parser.args(line.as_bytes()).map(<[u8]>::to_vec).collect(),
        other => panic!("{text:?} is {other:?}"),
    }
}

fn unescape(text: &str) -> Vec<u8> {
    text.replace("\\r", "\r").replace("\\n", "\n").into_bytes()
}

#[test]
fn every_transcript_comes_true() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    #[allow(clippy::disallowed_methods, reason = "the scenarios are files")]
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "resp"));
    files.sort();
    assert!(files.len() >= 10);
    let mut failures = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        #[allow(clippy::disallowed_methods, reason = "the scenarios are files")]
        let text = std::fs::read_to_string(&path).unwrap();
        let mut run = Run { server: Server::new(3), last: 0, lines: vec![Vec::new(); 3] };
        let mut failed = false;
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let is_expectation =
                line.starts_with('<') || line.get(1..2) == Some("<") || line.ends_with("closed");
            let unexpected = run.lines.iter().position(|lines| !lines.is_empty()).filter(|_| !is_expectation);
            let result = match unexpected {
                Some(client) => Err(format!("before it, unexpected: {:?}", run.lines[client])),
                None => run.step(line),
            };
            if let Err(reason) = result {
                failures.push(format!("{name}:{number}: {line}\n    {reason}"));
                failed = true;
                break;
            }
        }
        if !failed && run.lines.iter().any(|lines| !lines.is_empty()) {
            failures.push(format!("{name}: at its end, unexpected: {:?}", run.lines));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
