//! Live progress: one line on a terminal; in a pipe a line for each of the parts that take minutes.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of an invocation.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    total: Duration,
    done: Duration,
}

impl Progress {
    /// For work that is expected to take `total`.
    pub fn new(total: Duration) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), total, done: Duration::ZERO };
        }
        let bar = ProgressBar::new(total.as_millis() as u64);
        // A style that does not parse is our mistake; the default one does as well.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:30} {percent:>3}% {msg}") {
            bar.set_style(style);
        }
        Progress { bar, total, done: Duration::ZERO }
    }

    /// Shows nothing.
    pub fn silent() -> Progress {
        Progress { bar: ProgressBar::hidden(), total: Duration::ZERO, done: Duration::ZERO }
    }

    /// A part begins that takes minutes: in a pipe, where no line is drawn, it is named in a line of its own.
    pub fn begin(&self, part: impl std::fmt::Display) {
        if self.bar.is_hidden() {
            let left = self.total.saturating_sub(self.done);
            eprintln!("{part}; {:.1} min of runs to come", left.as_secs_f64() / 60.0);
        }
    }

    /// Says what is being done, `into` a piece of work of known length.
    pub fn show(&self, into: Duration, what: impl Into<String>) {
        if !self.bar.is_hidden() {
            self.bar.set_position((self.done + into).min(self.total).as_millis() as u64);
            self.bar.set_message(what.into());
        }
    }

    /// A piece of work of this length is done.
    pub fn advance(&mut self, by: Duration) {
        self.done += by;
        self.show(Duration::ZERO, "");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
