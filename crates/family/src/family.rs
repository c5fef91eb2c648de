//! The contract of a family.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use ordain_gateway::{Gateway, Router};
use ordain_log::Recovered;
use ordain_model::{Digest, Epoch, Registry};
use ordain_role::{Directory, Role};

use crate::message::Message;
use crate::settings::NodeSettings;

/// The roles of a node with their numbers, in ascending order.
pub type Roles<M> = Vec<(u16, Box<dyn Role<Message = M>>)>;

/// An engine as whoever runs its nodes sees it: a value of the engine's family, which knows which engine it is.
pub trait Family: Clone + Debug + Send + Sync + 'static {
    /// What its roles and front doors say to each other.
    type Message: Message;
    /// What it knows of a node that it has opened, before the node's roles are taken.
    type Opened: Opened<Message = Self::Message>;
    /// Why a node cannot be opened.
    type Error: Error + Send + Sync + 'static;

    /// Builds the roles of a node from what its directory holds, and executes again what has to be. Without a directory
    /// nothing is kept.
    ///
    /// # Errors
    /// Why the node cannot start. The directory is as it was, but for what crash recovery may cut.
    fn open(
        &self,
        directory: Option<&mut dyn Directory>,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<Self::Opened, Self::Error>;

    /// The gateway of front door `number`. `life` grows from one start of the node to the next, by more than the chunks that
    /// were submitted between them.
    fn gateway(&self, settings: &NodeSettings, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway;

    /// The routes of the node's front doors.
    fn router(&self, settings: &NodeSettings) -> Box<dyn Router>;

    /// The roles that are sent every change of the streams to other nodes, besides the front doors.
    fn peer_watchers(&self, settings: &NodeSettings) -> Vec<u16>;
}

/// A node that has been opened.
pub trait Opened {
    /// What its roles say to each other.
    type Message: Message;

    /// Its roles. Those below [`SHARDS`](crate::places::SHARDS) share the first event loop, each of the others has its own.
    fn into_roles(self) -> Roles<Self::Message>;

    /// The digest of the records that the node holds.
    fn digest(&self) -> Digest;

    /// What its log held, if it has one.
    fn recovered(&self) -> Option<&Recovered>;

    /// The number of the last log entry that a checkpoint has spared it to execute again; 0 without one.
    fn begins_after(&self) -> Epoch;

    /// How many transactions were executed again.
    fn replayed(&self) -> u64;

    /// Whether the node takes no part until it has got from another what its directory lacks.
    fn is_waiting(&self) -> bool;

    /// What an operator should know of how it was opened.
    fn notices(&self) -> Vec<Notice>;
}

/// A notice for the operator of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// All is as it should be.
    Information(String),
    /// Something is not as it should be, and the node does without it.
    Warning(String),
}
