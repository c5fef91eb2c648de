//! The file of users, read and written by a thread of its own for ACL LOAD and ACL SAVE.
//!
//! Reading waits for a disk, or for a file system that does not answer, and writing for a sync; an event loop waits for
//! neither. Whoever asks has a [`Desk`]: what is done is laid there, and a byte in a socket wakes the loop that watches it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mio::net::UnixStream;
use ordain_gateway::Ticket;
use ordain_resp::{Access, Users, UsersFileError};

use crate::secrets;

/// What is to be done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read it.
    Load,
    /// Write the users as they are when it is begun.
    Save,
}

/// What has been done.
#[derive(Debug)]
pub(crate) enum Done {
    /// It was read, and these are its users.
    Loaded(Result<Users, UsersFileError>),
    /// It was written.
    Saved(Result<(), UsersFileError>),
}

type Finished = Arc<Mutex<Vec<(Ticket, Done)>>>;

#[derive(Debug)]
struct Job {
    action: Action,
    ticket: Ticket,
    finished: Finished,
    bell: Arc<std::os::unix::net::UnixStream>,
}

fn lock(finished: &Finished) -> MutexGuard<'_, Vec<(Ticket, Done)>> {
    // Nothing panics while it is held.
    finished.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to the thread that reads and writes the file. The thread ends when all of them are gone.
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
            Action::Load => Done::Loaded(Users::read(secrets::read(path).map_err(|error| error.to_string()))),
            Action::Save => {
                let text = access.users(Users::clone).file();
                let written = secrets::write(path, &text);
                let unwritten = |error| UsersFileError::Unwritten(format!("{}: {error}", path.display()));
                Done::Saved(written.map_err(unwritten))
            }
        };
        lock(&finished).push((ticket, done));
        // A socket that is full wakes its reader already, and one without a reader has nobody to wake.
        let _ = (&*bell).write(&[1]);
    }
}

/// Where one event loop asks for work on the file, and finds what is done.
#[derive(Debug)]
pub(crate) struct Desk {
    file: UsersFile,
    finished: Finished,
    bell: Arc<std::os::unix::net::UnixStream>,
    /// Readable when something has been finished.
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

    /// Asks for something; its end comes under the ticket.
    pub(crate) fn ask(&self, action: Action, ticket: Ticket) {
        let (finished, bell) = (self.finished.clone(), self.bell.clone());
        if self.file.0.send(Job { action, ticket, finished, bell }).is_err() {
            // It has panicked. Nobody must wait for it.
            let gone = "the thread that does it has ended: start the node again".to_owned();
            let done = match action {
                Action::Load => Done::Loaded(Err(UsersFileError::Unread(gone))),
                Action::Save => Done::Saved(Err(UsersFileError::Unwritten(gone))),
            };
            lock(&self.finished).push((ticket, done));
            let _ = (&*self.bell).write(&[1]);
        }
    }

    /// What has been finished since this was last asked.
    pub(crate) fn take(&mut self) -> Vec<(Ticket, Done)> {
        let mut bytes = [0; 64];
        // Until it says that there is no more: nobody says twice that there is something.
        while matches!(self.wake.read(&mut bytes), Ok(1..)) {}
        std::mem::take(&mut *lock(&self.finished))
    }
}
