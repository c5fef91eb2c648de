//! The file of users, read and written by a thread of its own for ACL LOAD and ACL SAVE.
//!
//! Reading waits for a disk, or for a file system that does not answer, and writing for a sync; an event loop waits for
//! neither. Each has a [`Desk`], where results are laid; a byte in a socket wakes the loop that watches it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mio::net::UnixStream;
use ordain_front::{UsersFileAction, UsersFileDone};
use ordain_gateway::Ticket;
use ordain_resp::{Access, Users, UsersFileError};

use crate::secrets;

type Finished = Arc<Mutex<Vec<(Ticket, UsersFileDone)>>>;

#[derive(Debug)]
struct Job {
    action: UsersFileAction,
    ticket: Ticket,
    finished: Finished,
    bell: Arc<std::os::unix::net::UnixStream>,
}

fn lock(finished: &Finished) -> MutexGuard<'_, Vec<(Ticket, UsersFileDone)>> {
    // Nothing panics while it is held.
    finished.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channel to the thread that reads and writes the file. The thread ends when all of them are gone.
#[derive(Clone, Debug)]
pub(crate) struct UsersFile(Sender<Job>);

impl UsersFile {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn start(path: PathBuf, access: Arc<Access>) -> io::Result<UsersFile> {
        let (sender, jobs) = mpsc::channel();
        thread::Builder::new().name("ordain-users".into()).spawn(move || work(&path, &access, &jobs))?;
        Ok(UsersFile(sender))
    }
}

fn work(path: &Path, access: &Access, jobs: &Receiver<Job>) {
    for Job { action, ticket, finished, bell } in jobs {
        let done = match action {
            UsersFileAction::Load => {
                UsersFileDone::Loaded(Users::read(secrets::read(path).map_err(|error| error.to_string())))
            }
            UsersFileAction::Save => {
                let text = access.users(Users::clone).file();
                let written = secrets::write(path, &text);
                let unwritten = |error| UsersFileError::Unwritten(format!("{}: {error}", path.display()));
                UsersFileDone::Saved(written.map_err(unwritten))
            }
        };
        lock(&finished).push((ticket, done));
        // A socket that is full wakes its reader already, and one without a reader has nothing to wake.
        let _ = (&*bell).write(&[1]);
    }
}

/// The desk of one event loop: it takes jobs on the file, and holds their results.
#[derive(Debug)]
pub(crate) struct Desk {
    file: UsersFile,
    finished: Finished,
    bell: Arc<std::os::unix::net::UnixStream>,
    /// Readable when there is a result.
    pub(crate) wake: UnixStream,
}

impl Desk {
    /// A desk of an event loop's own.
    ///
    /// # Errors
    /// The system has no sockets.
    pub(crate) fn new(file: UsersFile) -> io::Result<Desk> {
        let (bell, wake) = std::os::unix::net::UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let wake = UnixStream::from_std(wake);
        Ok(Desk { file, finished: Arc::default(), bell: Arc::new(bell), wake })
    }

    /// Asks for a job, whose result comes under the ticket.
    pub(crate) fn ask(&self, action: UsersFileAction, ticket: Ticket) {
        let (finished, bell) = (self.finished.clone(), self.bell.clone());
        if self.file.0.send(Job { action, ticket, finished, bell }).is_err() {
            // It has panicked, and no client may wait for it.
            let gone = "the thread that does it has ended: start the node again".to_owned();
            let done = match action {
                UsersFileAction::Load => UsersFileDone::Loaded(Err(UsersFileError::Unread(gone))),
                UsersFileAction::Save => UsersFileDone::Saved(Err(UsersFileError::Unwritten(gone))),
            };
            lock(&self.finished).push((ticket, done));
            let _ = (&*self.bell).write(&[1]);
        }
    }

    /// The results since this was last called.
    pub(crate) fn take(&mut self) -> Vec<(Ticket, UsersFileDone)> {
        let mut bytes = [0; 64];
        // Until it is empty, as events are edge-triggered.
        while matches!(self.wake.read(&mut bytes), Ok(1..)) {}
        std::mem::take(&mut *lock(&self.finished))
    }
}
