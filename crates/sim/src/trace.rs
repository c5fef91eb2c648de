//! The event trace: what happened, one line an event.
//!
//! Every line goes into a hash, always; the text itself is handed on only when somebody asked for it. Two runs
//! of a seed have the same hash, so a source of nondeterminism is found the day it enters (STYLE.md, 15).

use std::fmt::{self, Write};

use ordain_model::Micros;
use xxhash_rust::xxh3::Xxh3;

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

    /// How many lines there were.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("events", &self.events).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_of_the_text_and_the_text_goes_to_the_sink() {
        let mut text = Vec::new();
        let mut sink = |line: &str| text.push(line.to_owned());
        let mut told = Trace::new(Some(&mut sink));
        let mut quiet = Trace::new(None);
        for trace in [&mut told, &mut quiet] {
            trace.note(Micros(5), format_args!("crash of node {}", 1));
            trace.note(Micros(7), format_args!("restart"));
        }
        let hash = told.hash();
        assert_eq!((hash, told.events()), (quiet.hash(), 2));
        quiet.note(Micros(7), format_args!("restart"));
        assert_ne!(hash, quiet.hash());
        assert_eq!(text, ["           5 crash of node 1", "           7 restart"]);
    }
}
