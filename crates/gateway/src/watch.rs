//! Watched keys: which a block of commands must find as they were.
//!
//! WATCH reads the versions of records, and the block is a transaction that aborts if a record's version is another when
//! it takes place. So a watched key that was changed, deleted, flushed or has expired ends the block without effect, on any
//! engine. A key that was absent, appeared and went again is as it was.

use std::collections::BTreeMap;

use ordain_model::key::MAX_KEYS;
use ordain_model::procedure::ValidatedRead;
use ordain_model::{Call, Db, PlanError, ProcedureId, Version, View, system};
use ordain_role::Bug;

use crate::{Gateway, Path, Stream, Ticket};

/// The keys that a connection watches, each with the version that it had when it was first watched.
#[derive(Debug, Default)]
pub struct Watched(Option<Box<Versions>>);

type Versions = BTreeMap<(Db, Vec<u8>), Version>;

/// The keys whose versions a WATCH reads.
#[derive(Debug)]
pub struct Watching(Vec<(Db, Vec<u8>)>);

impl Watched {
    /// Whether no key is watched.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Watches no key any more.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes the reply to [`Gateway::watch`]: the keys are watched from now on. `None` for a damaged reply.
    pub fn take(&mut self, Watching(keys): &Watching, reply: &[u8]) -> Option<()> {
        let read = system::read_reply(keys.iter().map(|(db, key)| (*db, &**key)), reply)?;
        let watched = self.0.get_or_insert_default();
        for ValidatedRead { db, key, version, .. } in read.records {
            watched.entry((db, key)).or_insert(version);
        }
        Some(())
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |watched| watched.len())
    }

    fn has(&self, key: &(Db, Vec<u8>)) -> bool {
        self.0.as_ref().is_some_and(|watched| watched.contains_key(key))
    }
}

impl Gateway {
    /// Submits the read of the versions of keys that are not watched yet; the reply is for [`Watched::take`]. `None` if all
    /// keys are watched: nothing was submitted.
    ///
    /// # Errors
    /// As [`Gateway::submit`], and if more keys would be watched than a transaction may have.
    pub fn watch(
        &mut self,
        (stream, ticket): (Stream, Ticket),
        view: View,
        keys: impl Iterator<Item = (Db, Vec<u8>)>,
        watched: &Watched,
    ) -> Result<Option<Watching>, PlanError> {
        let fresh: Vec<(Db, Vec<u8>)> = keys.filter(|key| !watched.has(key)).collect();
        let Some((db, _)) = fresh.first() else { return Ok(None) };
        if watched.len() + fresh.len() > MAX_KEYS {
            return Err(PlanError::fixed("ERR transaction exceeds the limit of 65536 keys"));
        }
        let call = Call::new(system::READ, *db);
        let keys = fresh.iter().map(|(db, key)| (*db, &**key));
        self.submit_in_order(stream, ticket, call, view, |args| system::read_args(keys, args))?;
        Ok(Some(Watching(fresh)))
    }

    /// Submits calls as one transaction, which aborts with [`Abort::Conflict`](ordain_model::Abort::Conflict) unless every
    /// watched key has the version that it had. `call` names the database and the request; its procedure does not count.
    ///
    /// # Errors
    /// As [`Gateway::submit`].
    pub fn submit_block<'c>(
        &mut self,
        (stream, ticket): (Stream, Ticket),
        call: Call,
        view: View,
        watched: &'c Watched,
        calls: impl Iterator<Item = (ProcedureId, Db, &'c [u8])>,
    ) -> Result<Path, PlanError> {
        let call = Call { procedure: system::MULTI, ..call };
        // Planted, WATCHED.
        let watched = watched.0.as_ref().filter(|_| !self.bugs.has(Bug::IgnoreWatch));
        self.submit_in_order(stream, ticket, call, view, |args| match watched {
            Some(watched) => {
                let reads = watched.iter().map(|((db, key), version)| (*db, &**key, *version));
                system::multi_args(reads, calls, args);
            }
            None => system::multi_args(std::iter::empty(), calls, args),
        })
    }
}
