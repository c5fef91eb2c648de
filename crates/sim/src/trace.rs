//! The event trace: what happened, one line an event.
//!
//! Every line goes into a hash, always; the text itself is handed on only to a sink. Two runs
//! of a seed have the same hash, so a source of nondeterminism is found the day it enters (STYLE.md, 15).

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

/// The text of an event: of a message of the front door what it holds, of another message, which may hold whole batches,
/// the beginning of its text and a hash of all of it.
pub(crate) struct EventText<'e, M>(pub(crate) &'e Event<M>);

impl<M: Message> fmt::Display for EventText<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 160;
        let (from, message) = match self.0 {
            Event::Message { from, message } => (from, message),
            other => return write!(f, "{other:?}"),
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
            Incoming::Front(Front::Outcomes(batch)) => write!(f, "outcomes {}", batch.outcomes.len()),
            Incoming::Front(Front::Pause(pause)) => write!(f, "pause {}", pause.0),
            Incoming::Front(Front::Continue(pause)) => write!(f, "continue after {}", pause.0),
            Incoming::Front(Front::Memory { is_over, room }) => write!(f, "memory {is_over} {room}"),
            Incoming::Peer(_) | Incoming::Role(_) => {
                let mut text = String::new();
                write!(text, "{message:?}")?;
                match text.char_indices().nth(LONGEST) {
                    Some((cut, _)) => {
                        write!(f, "{}... {:016x}", &text[..cut], xxh3_64(text.as_bytes()))
                    }
                    None => f.write_str(&text),
                }
            }
        }
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
}
