//! Ctrl-C in the middle of measuring: what was measured until then is reported, what was started is stopped, and what
//! was written for the time being is removed. Who asks once more later on does not want to wait for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The reason of a run that was interrupted.
pub const INTERRUPTED: &str = "interrupted by a signal";
/// Signals that are closer together are one request: `timeout` sends one to the process and one to its group.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Watches for SIGINT and SIGTERM, for the rest of the process.
pub fn watch() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let watching = move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            REQUESTED.store(true, Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() > ONE_REQUEST {
                std::process::exit(1);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watching).context("cannot watch for signals")?;
    Ok(())
}

/// True after a signal to stop.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Goes on, unless we were asked to stop.
pub fn check() -> anyhow::Result<()> {
    if is_requested() { bail!(INTERRUPTED) } else { Ok(()) }
}
