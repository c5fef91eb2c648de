//! Live progress: one line on a terminal, nothing in a pipe.

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
            return Progress::silent();
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
