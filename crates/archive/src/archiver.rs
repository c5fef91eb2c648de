//! The thread that takes to the archive what its node has completed.
//!
//! It looks into the node's directory: a checkpoint with a seal there is complete, whoever made it and whenever. It reads it
//! through, as a start would, so that nothing damaged takes a sound one's place; uploads the file; and puts the seal last. What
//! a member has put there of the same epoch already is not put there again: the first replica comes first, the others have
//! [patience](Rules::patience). What it does when is [`Work`].
//!
//! What goes wrong is tried again after a second, then two, then four, up to a minute. Nobody waits for this thread: no loop
//! knows of it. What it does stands in [`Standing`].

use std::cell::OnceCell;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_checkpoint::{Found, Header, file_name, list};
use ordain_model::{Epoch, Millis};
use ordain_role::NodeId;
use ordain_runtime::FsDirectory;
use tokio::sync::watch;

use crate::archive::{Archive, ArchiveError, Object, runtime};
use crate::location::{Environment, Location};
use crate::seal::Owner;
use crate::work::{Content, Machine, Rules, Standing, Store, Work, is_sound};

/// The settings of an archiver.
#[derive(Clone, Debug)]
pub struct ArchiverSettings {
    /// The store.
    pub location: Location,
    /// The environment's values for the store.
    pub environment: Environment,
    /// The node's data directory.
    pub data_dir: PathBuf,
    /// The rules of which checkpoints go to the archive, and which stay there.
    pub rules: Rules,
    /// The length of a part of an upload; none: the usual one.
    pub part: Option<u64>,
}

impl ArchiverSettings {
    /// Settings with the usual times.
    pub fn new(
        location: Location,
        data_dir: PathBuf,
        (node, owner, header): (NodeId, Owner, Header),
    ) -> ArchiverSettings {
        ArchiverSettings {
            location,
            environment: Environment::of_process(),
            data_dir,
            rules: Rules {
                node,
                owner,
                header,
                keep: KEEP.get(),
                patience: Some(Duration::ZERO),
                pace: Duration::from_secs(1),
                wait: Duration::from_secs(1),
            },
            part: None,
        }
    }
}

/// The default number of checkpoints that are kept in the store.
pub const KEEP: NonZeroUsize = NonZeroUsize::new(7).expect("it is not zero");

/// The thread. It ends when this goes, whatever it was doing: half an upload is nothing.
#[derive(Debug)]
pub struct Archiver {
    standing: Standing,
    stop: watch::Sender<bool>,
    /// The other end goes when the thread ends.
    ended: mpsc::Receiver<()>,
}

/// The time for which a node that stops waits for its archiver: a mounted store that hangs would hang for ever.
const END_WITHIN: Duration = Duration::from_secs(2);

impl Archiver {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread, or the directory cannot be opened.
    pub fn start(settings: ArchiverSettings) -> Result<Archiver, ArchiveError> {
        let local = |reason: String| ArchiveError::Local(reason);
        let directory = FsDirectory::open(&settings.data_dir).map_err(|error| local(error.to_string()))?;
        let runtime = runtime()?;
        let (stop, mut stopped) = watch::channel(false);
        let standing = Standing::default();
        let (rules, location) = (settings.rules.clone(), settings.location.to_string());
        let files = Files { data_dir: settings.data_dir.clone(), directory, stopped: stopped.clone() };
        let opened = Opened { settings, archive: OnceCell::new() };
        let work = Work::new(rules, files, (opened, location), standing.clone());
        let (until_then, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("ordain-archive".into()).spawn(move || {
            let _until_then: mpsc::Sender<()> = until_then;
            runtime.block_on(async move {
                tokio::select! {
                    () = work.run() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            });
            runtime.shutdown_background();
        });
        thread.map_err(|error| local(format!("cannot start the archiver: {error}")))?;
        Ok(Archiver { standing, stop, ended })
    }

    /// The state of the archive.
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        // Without a receiver the thread has ended already.
        let _ = self.stop.send(true);
        let _ = self.ended.recv_timeout(END_WITHIN);
    }
}

/// The node's files and clock.
#[derive(Debug)]
struct Files {
    data_dir: PathBuf,
    directory: FsDirectory,
    stopped: watch::Receiver<bool>,
}

impl Machine for Files {
    async fn look(&self) -> Result<Vec<Found>, ArchiveError> {
        list(&self.directory).map_err(|error| ArchiveError::Local(error.to_string()))
    }

    async fn is_sound(&self, expected: Header) -> bool {
        is_sound(&self.directory, &expected, || *self.stopped.borrow())
    }

    async fn open(&self, epoch: Epoch) -> Result<Option<Content>, ArchiveError> {
        let cannot =
            |error: std::io::Error| ArchiveError::Local(format!("cannot read {}: {error}", file_name(epoch)));
        match File::open(self.data_dir.join(file_name(epoch))) {
            Ok(file) => {
                let len = file.metadata().map_err(cannot)?.len();
                Ok(Some(Content::new(file, len)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot(error)),
        }
    }

    fn now(&self) -> Millis {
        Millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64)
    }

    async fn pause(&self, lasts: Duration) {
        tokio::time::sleep(lasts).await;
    }
}

/// The store, which is opened at its first use: a directory that is not mounted is a failure that passes.
#[derive(Debug)]
struct Opened {
    settings: ArchiverSettings,
    archive: OnceCell<Archive>,
}

impl Opened {
    fn archive(&self) -> Result<&Archive, ArchiveError> {
        if let Some(archive) = self.archive.get() {
            return Ok(archive);
        }
        let archive = Archive::open(&self.settings.location, &self.settings.environment)?;
        let archive = match self.settings.part {
            Some(part) => archive.with_part(part),
            None => archive,
        };
        Ok(self.archive.get_or_init(|| archive))
    }
}

impl Store for Opened {
    async fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError> {
        self.archive()?.list(under).await
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        self.archive()?.put(name, bytes).await
    }

    async fn upload(&self, name: &str, content: Content) -> Result<u64, ArchiveError> {
        self.archive()?.upload(name, content).await
    }

    async fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        self.archive()?.remove(name).await
    }
}
