//! Golden transcripts: one scenario a file of `transcripts/`, for every subject of the suite.
//!
//! The language, line by line:
//! - `# …` and empty lines are comments;
//! - `> words` sends a command on connection `a` and lets everything settle; words are quoted as inline commands
//!   are; `b> words` sends it on connection `b`, and so on up to `d`;
//! - `>> words` sends it without letting anything settle, so that what follows is pipelined behind it;
//! - `!> words` is as `> words`, and answered differently from Redis in a transcript that `transcripts/record.py` records from it;
//! - `! bytes` sends bytes with the escapes `\r` and `\n`, as they are, and settles;
//! - `< line` is the next line of the connection that sent last, or `b< line` of connection `b`; what is not
//!   printable is escaped; `...` in it stands for anything; everything received must be expected;
//! - `= reply` is the next whole reply, on one line ([`crate::reply`]); `~ [items]` is one whose items come in any order,
//!   here sorted;
//! - `@ 1500` lets so many milliseconds pass;
//! - `swept` has the records removed whose time has come;
//! - `moves` has slots move to other shards and partitions;
//! - `resp 3` has every connection speak RESP3;
//! - `closed` or `b closed`: the connection is closed;
//! - `hangs up` or `b hangs up`: the client breaks the connection off, and its next command is sent on a new one;
//! - `where words`: what follows, up to the next such line or `everywhere`, is for subjects that all the words hold for
//!   ([`Traits::has`](crate::Traits::has));
//! - `weather fair|busy|refused|reversed` is how the reference answers from here on.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ordain_resp::client::Reply;
use ordain_resp::codec::{RequestLimits, RequestParser, Step};

use crate::conversation::Conversation;
use crate::reply;
use crate::subject::{Subject, Weather};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The name of its file.
    pub name: String,
    lines: Vec<(usize, String)>,
}

/// The place where a subject did something else than a transcript says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file and the line.
    pub place: String,
    /// The line's text.
    pub line: String,
    /// The difference.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    {}", self.place, self.line, self.reason)
    }
}

impl Transcript {
    /// The transcript of some text.
    pub fn new(name: &str, text: &str) -> Transcript {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned()));
        Transcript { name: name.to_owned(), lines: lines.collect() }
    }

    /// The transcripts of a folder below `transcripts/`, in the order of their names.
    ///
    /// # Panics
    /// If the folder cannot be read or has none.
    pub fn folder(folder: &str) -> Vec<Transcript> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(folder);
        let entries = fs::read_dir(&folder).expect("the folder of transcripts can be read");
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "resp"));
        files.sort();
        assert!(!files.is_empty(), "{} has transcripts", folder.display());
        let read = |path: PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Transcript::new(&name, &fs::read_to_string(&path).expect("a transcript is text"))
        };
        files.into_iter().map(read).collect()
    }

    /// Runs the scenario against a fresh subject.
    ///
    /// # Errors
    /// The first line that does not come true.
    pub fn run(&self, subject: &mut dyn Subject) -> Result<(), Failure> {
        let mut run = Run::new(subject);
        for (number, line) in &self.lines {
            let fail = |reason: String| Failure {
                place: format!("{}:{number}", self.name),
                line: line.clone(),
                reason,
            };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            run.line(line).map_err(fail)?;
        }
        run.expect_nothing().map_err(|reason| Failure {
            place: self.name.clone(),
            line: "(the end)".to_owned(),
            reason,
        })
    }
}

/// A run of a transcript.
struct Run<'a> {
    talk: Conversation<'a>,
    /// The connection that has sent last.
    last: usize,
    /// The passage is for other subjects.
    is_skipped: bool,
}

/// Which connection a line is about, if it says so, and the rest of it.
fn split_connection(line: &str) -> (Option<usize>, &str) {
    match line.as_bytes() {
        [name @ b'a'..=b'd', b'>' | b'<' | b'=' | b'~' | b'!', ..] => {
            (Some(usize::from(name - b'a')), &line[1..])
        }
        [name @ b'a'..=b'd', b' ', ..] => (Some(usize::from(name - b'a')), &line[2..]),
        _ => (None, line),
    }
}

impl<'a> Run<'a> {
    fn new(subject: &'a mut dyn Subject) -> Run<'a> {
        Run { talk: Conversation::new(subject), last: 0, is_skipped: false }
    }

    /// Everything received was expected.
    fn expect_nothing(&self) -> Result<(), String> {
        let unexpected = self.talk.all_received().iter().find(|received| !received.is_empty());
        match unexpected {
            None => Ok(()),
            Some(received) => Err(format!("before it, unexpected: {:?}", reply::lines(received))),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(words) = line.strip_prefix("where ") {
            let traits = self.talk.subject.traits();
            let mut holds =
                words.split(' ').map(|word| traits.has(word).ok_or_else(|| format!("no word {word:?}")));
            self.is_skipped = !holds.try_fold(true, |all, has| has.map(|has| all && has))?;
            return self.expect_nothing();
        }
        if line == "everywhere" {
            self.is_skipped = false;
            return Ok(());
        }
        if self.is_skipped {
            return Ok(());
        }
        let (named, rest) = split_connection(line);
        if let Some(expected) = rest.strip_prefix('<') {
            let expected = expected.strip_prefix(' ').unwrap_or(expected);
            return self.expect_line(named.unwrap_or(self.last), expected);
        }
        if let Some(expected) = rest.strip_prefix("= ") {
            return self.expect_reply(named.unwrap_or(self.last), expected, false);
        }
        if let Some(expected) = rest.strip_prefix("~ ") {
            return self.expect_reply(named.unwrap_or(self.last), expected, true);
        }
        if rest == "closed" {
            return self.expect_closed(named.unwrap_or(self.last));
        }
        self.expect_nothing()?;
        self.act(named, rest)
    }

    fn act(&mut self, named: Option<usize>, line: &str) -> Result<(), String> {
        let sends = line.starts_with(['>', '!']);
        if sends {
            self.last = named.unwrap_or(0);
        }
        if let Some(words) = line.strip_prefix(">>") {
            self.talk.command(self.last, &words_of(words)?)?;
        } else if let Some(words) = line.strip_prefix("!>").or_else(|| line.strip_prefix('>')) {
            self.talk.command(self.last, &words_of(words)?)?;
            self.talk.settle()?;
        } else if let Some(bytes) = line.strip_prefix("! ") {
            self.talk.send(self.last, bytes.replace("\\r", "\r").replace("\\n", "\n").as_bytes())?;
            self.talk.settle()?;
        } else if let Some(ms) = line.strip_prefix("@ ") {
            self.talk.subject.advance(ms.parse().map_err(|_| "no number of milliseconds")?)?;
        } else if let Some(weather) = line.strip_prefix("weather ") {
            self.talk.subject.set_weather(Weather::named(weather).ok_or("unknown weather")?);
        } else if line == "swept" {
            self.talk.subject.sweep()?;
        } else if line == "moves" {
            self.talk.subject.move_slots()?;
        } else if line == "resp 3" {
            self.talk.speak_resp3()?;
        } else if line == "hangs up" {
            self.talk.hang_up(named.unwrap_or(self.last))?;
        } else {
            return Err("not a line of a transcript".to_owned());
        }
        Ok(())
    }

    fn expect_line(&mut self, number: usize, expected: &str) -> Result<(), String> {
        let received = self.talk.received(number);
        if received.is_empty() {
            return Err(format!("expected {expected:?}, received nothing"));
        }
        let end = received.windows(2).position(|pair| pair == b"\r\n").map_or(received.len(), |end| end + 2);
        let line: Vec<u8> = received.drain(..end).collect();
        let got = reply::lines(&line).join("\n");
        if fits(expected, &got) {
            return Ok(());
        }
        Err(format!("expected {expected:?}, received {got:?}, then {:?}", reply::lines(received)))
    }

    fn expect_reply(&mut self, number: usize, expected: &str, in_any_order: bool) -> Result<(), String> {
        let received = self.talk.received(number);
        let (reply, len) =
            reply::first(received)?.ok_or_else(|| format!("expected {expected:?}, received nothing"))?;
        received.drain(..len);
        let text = match reply.composite().filter(|_| in_any_order) {
            Some(items) => {
                let mut items: Vec<String> = items.iter().map(Reply::to_string).collect();
                items.sort_unstable();
                format!("[{}]", items.join(" "))
            }
            None => reply.to_string(),
        };
        if fits(expected, &text) {
            return Ok(());
        }
        Err(format!("expected {expected:?}, received {text:?}"))
    }

    fn expect_closed(&mut self, number: usize) -> Result<(), String> {
        self.talk.is_closed(number).then_some(()).ok_or_else(|| "the connection is open".to_owned())
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

/// The words of a command, quoted as inline commands are.
///
/// # Errors
/// The text is no command.
pub fn words_of(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let line = format!("{text}\n");
    let mut parser = RequestParser::default();
    match parser.next(line.as_bytes(), RequestLimits::FULL) {
        Step::Command { .. } => Ok(parser.args(line.as_bytes()).map(<[u8]>::to_vec).collect()),
        other => Err(format!("{text:?} is {other:?}")),
    }
}
