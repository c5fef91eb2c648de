//! The log of a database server of a region.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ordain_role::{Address, Event, Now, Outbox, Role};

use super::{StorageError, StorageLogSettings, check_region};
use crate::entry::EntryType;
use crate::message::Carrier;

/// Writes the log of a region, or follows it.
pub struct StorageLog<T: EntryType, M> {
    settings: StorageLogSettings,
    rank: usize,
    context: Arc<T::Context>,
    appender: Address,
    sinks: Vec<Address>,
    marker: PhantomData<fn() -> M>,
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// The log of a database server, which begins with what its node has and keeps nothing on disk.
    ///
    /// # Errors
    /// [`StorageError::Settings`].
    pub fn new(
        settings: StorageLogSettings,
        context: Arc<T::Context>,
        (appender, sinks): (Address, Vec<Address>),
    ) -> Result<StorageLog<T, M>, StorageError> {
        let rank = check_region(settings.me.node, &settings.servers, &settings.servers, &settings.replicas)?;
        Ok(StorageLog { settings, rank, context, appender, sinks, marker: PhantomData })
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> Role for StorageLog<T, M> {
    type Message = M;

    fn handle(&mut self, _: Now, _: Event<M>, _: &mut Outbox<M>) {}

    fn name(&self) -> &'static str {
        "storage-log"
    }
}

impl<T: EntryType, M> fmt::Debug for StorageLog<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageLog").field("rank", &self.rank).finish_non_exhaustive()
    }
}
