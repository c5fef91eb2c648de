//! Certificates that are replaced while a node runs: their files are polled each second, and read when they have changed.
//!
//! What begins after that has the new certificate; connections that are there go on as they began. Files that cannot be
//! used change nothing: the node keeps what it had, says why in its log, in `/status` and in a metric, and looks again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::tls::TlsError;

/// The period of the poll.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// After how many looks files that could not be used are read again although they have not changed.
const AGAIN_AFTER: u32 = 10;

/// What tells one content of a file from another: device, number, size, and when content and file changed.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// Certificates for one purpose, and how they are read again.
pub(crate) struct Watched {
    purpose: &'static str,
    files: Vec<PathBuf>,
    stamps: Vec<Stamp>,
    renew: Box<dyn FnMut() -> Result<(), TlsError> + Send>,
    failure: Option<String>,
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let found = fs::metadata(file).ok()?;
        let (changed, inode) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
        Some((found.dev(), found.ino(), found.size(), changed, inode))
    };
    files.iter().map(stamp).collect()
}

/// The count of replaced certificates, and the failures.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    renewed: AtomicU64,
    failures: Mutex<Vec<(&'static str, String)>>,
}

impl Renewals {
    fn failures(&self) -> MutexGuard<'_, Vec<(&'static str, String)>> {
        // Each change of it is whole.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of replacements.
    pub(crate) fn total(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// The reasons why new files are not used, by purpose.
    pub(crate) fn failing(&self) -> Option<String> {
        let failures = self.failures();
        let lines: Vec<String> = failures.iter().map(|(purpose, why)| format!("{purpose}: {why}")).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

impl Watched {
    /// Takes note of how the files are now: to be called before they are read for the first time.
    pub(crate) fn new(purpose: &'static str, files: Vec<PathBuf>) -> Watched {
        let stamps = stamps(&files);
        Watched { purpose, files, stamps, renew: Box::new(|| Ok(())), failure: None }
    }

    /// Has them be read again like this.
    pub(crate) fn renewed_by(self, renew: impl FnMut() -> Result<(), TlsError> + Send + 'static) -> Watched {
        Watched { renew: Box::new(renew), ..self }
    }

    /// Reads the files again if they have changed, or if it is time to try once more.
    fn look(&mut self, is_time: bool, renewals: &Renewals) {
        let now = stamps(&self.files);
        if now == self.stamps && !(is_time && self.failure.is_some()) {
            return;
        }
        self.stamps = now;
        let failure = (self.renew)().err().map(|error| error.to_string());
        match &failure {
            None => {
                renewals.renewed.fetch_add(1, Ordering::Relaxed);
                tracing::info!("certificates for {} were replaced: new connections have them", self.purpose);
            }
            Some(reason) if self.failure != failure => tracing::error!(
                "new certificates for {} are not used, those before them stay in use: {reason}",
                self.purpose
            ),
            Some(_) => {}
        }
        let mut failures = renewals.failures();
        failures.retain(|(purpose, _)| *purpose != self.purpose);
        failures.extend(failure.clone().map(|reason| (self.purpose, reason)));
        drop(failures);
        self.failure = failure;
    }
}

/// The thread that looks at the files; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks at these, if there are any.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(mut all: Vec<Watched>, renewals: Arc<Renewals>) -> std::io::Result<Watch> {
        if all.is_empty() {
            return Ok(Watch { stop: None, thread: None });
        }
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            let mut looks = 0_u32;
            while stopped.recv_timeout(LOOK_AFTER) == Err(RecvTimeoutError::Timeout) {
                looks = looks.wrapping_add(1);
                all.iter_mut().for_each(|watched| watched.look(looks.is_multiple_of(AGAIN_AFTER), &renewals));
            }
        };
        let thread = thread::Builder::new().name("ordain-certs".into()).spawn(look)?;
        Ok(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn files_are_read_when_they_change_and_those_that_cannot_be_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cert");
        fs::write(&file, "good").unwrap();
        let (reads, renewals) = (Arc::new(AtomicUsize::new(0)), Renewals::default());
        let counter = reads.clone();
        let read = file.clone();
        let mut watched = Watched::new("clients", vec![file.clone()]).renewed_by(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            match fs::read_to_string(&read).as_deref() {
                Ok("bad") => Err(TlsError::NoAuthority),
                _ => Ok(()),
            }
        });
        let mut look = |is_time| {
            watched.look(is_time, &renewals);
            (reads.load(Ordering::Relaxed), renewals.total(), renewals.failing().is_some())
        };
        assert_eq!(look(true), (0, 0, false), "nothing has changed");
        // By another file in its place, as tools do it: the time alone might be the same.
        let put = |text: &str| {
            fs::write(dir.path().join("new"), text).unwrap();
            fs::rename(dir.path().join("new"), &file).unwrap();
        };
        put("bad");
        assert_eq!(look(false), (1, 0, true));
        assert_eq!(look(false), (1, 0, true));
        assert_eq!(look(true), (2, 0, true));
        put("good");
        assert_eq!(look(false), (3, 1, false));
        fs::remove_file(&file).unwrap();
        assert_eq!(look(false), (4, 2, false), "that it is gone is a change too");
        assert_eq!(stamps(&[Path::new("/nowhere").to_owned()]), [None]);
    }
}
