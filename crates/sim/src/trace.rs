//! The event trace: what happened, one line an event.
//!
//! Every line goes into a hash, always; the text itself is handed on only to a sink. Two runs
//! of a seed have the same hash, so a source of nondeterminism is found the day it enters (STYLE.md, 15).
//!
//! Lines are short, as they are made in every run. What they leave out goes into the hash where it is bytes anyway:
//! messages between nodes, and writes to disks.

use std::fmt::{self, Write};

use ordain_family::{Incoming, Message};
use ordain_model::{Front, Micros};
use ordain_role::Event;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Takes the lines of a trace, without line ends.
pub type Sink<'a> = &'a mut dyn FnMut(&str);

/// The trace of one run.
pub struct Trace<'a> {
    hash: Xxh3,
    events: u64,
    line: String,
    sink: Option<Sink<'a>>,
}

impl<'a> Trace<'a> {
    /// A trace that hands its lines to `sink`, if there is one.
    pub fn new(sink: Option<Sink<'a>>) -> Trace<'a> {
        Trace { hash: Xxh3::new(), events: 0, line: String::new(), sink }
    }

    /// Notes an event.
    pub fn note(&mut self, at: Micros, event: fmt::Arguments<'_>) {
        self.events += 1;
        self.line.clear();
        // Writing to a string cannot fail; a Debug implementation that does leaves a shorter line.
        let _ = write!(self.line, "{:>12} {event}", at.0);
        self.hash.update(self.line.as_bytes());
        self.hash.update(b"\n");
        if let Some(sink) = &mut self.sink {
            sink(&self.line);
        }
    }

    /// Takes bytes into the hash that no line shows.
    pub fn cover(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// The hash of all lines so far.
    pub fn hash(&self) -> u128 {
        self.hash.digest128()
    }

    /// The number of lines.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("events", &self.events).finish_non_exhaustive()
    }
}

/// The text of an event: of a message of the front door what it holds, of another one the beginning of its text, as it may
/// hold whole batches.
pub(crate) struct EventText<'e, M>(pub(crate) &'e Event<M>);

impl<M: Message> fmt::Display for EventText<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, message) = match self.0 {
            Event::Message { from, message } => (from, message),
            other => return write!(f, "{}", Head(other)),
        };
        write!(f, "from {}/{} ", from.node.0, from.role)?;
        match message.clone().incoming() {
            Incoming::Front(Front::Submit(chunk)) => write!(
                f,
                "submit gateway {} chunk {} txns {} {:016x}",
                chunk.gateway,
                chunk.number,
                chunk.txns().len(),
                xxh3_64(chunk.logged())
            ),
            Incoming::Front(Front::Read(chunk, snapshot)) => write!(
                f,
                "read gateway {} chunk {} txns {} {snapshot:?}",
                chunk.gateway,
                chunk.number,
                chunk.txns().len()
            ),
            Incoming::Front(Front::ReadDone(gateway, number)) => {
                write!(f, "read gateway {gateway} chunk {number} done")
            }
            Incoming::Front(Front::Step(step, chunk)) => write!(
                f,
                "step {} of {}/{} chunk {}{}",
                step.number,
                step.of.gateway,
                step.of.number,
                chunk.number,
                if step.is_commit { " commit" } else { "" }
            ),
            Incoming::Front(Front::Abandon(open)) => write!(f, "abandon {}/{}", open.gateway, open.number),
            Incoming::Front(Front::Outcomes(batch)) => write!(f, "outcomes {}", batch.outcomes.len()),
            Incoming::Front(Front::Pause(pause)) => write!(f, "pause {}", pause.0),
            Incoming::Front(Front::Continue(pause)) => write!(f, "continue after {}", pause.0),
            Incoming::Front(Front::Memory { is_over, room }) => write!(f, "memory {is_over} {room}"),
            Incoming::Peer(_) | Incoming::Role(_) => {
                write!(f, "{}", Head(message))
            }
        }
    }
}

/// The beginning of a value's text. The rest is not made.
pub(crate) struct Head<'v, T>(pub(crate) &'v T);

impl<T: fmt::Debug> Head<'_, T> {
    /// The most bytes that are shown.
    const LONGEST: usize = 160;
}

impl<T: fmt::Debug> fmt::Display for Head<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = Room { left: Self::LONGEST, f };
        match write!(room, "{:?}", self.0) {
            Err(fmt::Error) if room.left == 0 => f.write_str("..."),
            ended => ended,
        }
    }
}

/// Passes on so many bytes, and fails at the first one more.
struct Room<'r, 'f> {
    left: usize,
    f: &'r mut fmt::Formatter<'f>,
}

impl Write for Room<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() <= self.left {
            self.left -= text.len();
            return self.f.write_str(text);
        }
        let end = text.floor_char_boundary(self.left);
        self.left = 0;
        self.f.write_str(&text[..end])?;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_of_the_text_and_the_text_goes_to_the_sink() {
        let mut text = Vec::new();
        let mut sink = |line: &str| text.push(line.to_owned());
        let mut loud = Trace::new(Some(&mut sink));
        let mut quiet = Trace::new(None);
        for trace in [&mut loud, &mut quiet] {
            trace.note(Micros(5), format_args!("crash of node {}", 1));
            trace.note(Micros(7), format_args!("restart"));
        }
        let hash = loud.hash();
        assert_eq!((hash, loud.events()), (quiet.hash(), 2));
        quiet.note(Micros(7), format_args!("restart"));
        assert_ne!(hash, quiet.hash());
        assert_eq!(text, ["           5 crash of node 1", "           7 restart"]);
    }

    #[test]
    fn bytes_that_no_line_shows_are_in_the_hash() {
        let hash = |bytes: &[u8]| {
            let mut trace = Trace::new(None);
            trace.note(Micros(1), format_args!("a write"));
            trace.cover(bytes);
            trace.hash()
        };
        assert_eq!(hash(b"one"), hash(b"one"));
        assert_ne!(hash(b"one"), hash(b"two"));
    }

    #[test]
    fn a_long_value_shows_its_beginning() {
        assert_eq!(Head(&"short").to_string(), "\"short\"");
        let exact = "x".repeat(Head::<String>::LONGEST - 2);
        assert_eq!(Head(&exact).to_string(), format!("{exact:?}"));
        let long = format!("{}", Head(&vec![1_u8; 1000]));
        assert!(long.starts_with("[1, 1, ") && long.ends_with("...") && long.len() <= 163, "{long}");
        // A character is not cut into two.
        let wide = Head(&"\u{e9}".repeat(200)).to_string();
        assert_eq!(wide.chars().filter(|c| *c == '\u{e9}').count(), 79);
    }
}
