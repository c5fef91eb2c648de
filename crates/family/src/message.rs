//! The messages of a family, as far as front doors and the network must know them.

use std::fmt::Debug;

use ordain_model::Front;
use ordain_role::{PeerChange, Wire};

/// A message between the roles and the front doors of a family's nodes.
pub trait Message: Wire + Clone + Debug + Send + From<Front> + From<PeerChange> + 'static {
    /// Sorts a message by who it is for.
    fn incoming(self) -> Incoming<Self>;
}

/// A message, sorted by who it is for.
#[derive(Clone, Debug)]
pub enum Incoming<M> {
    /// Between front doors and roles.
    Front(Front),
    /// The stream to another node has changed.
    Peer(PeerChange),
    /// Between roles of the family.
    Role(M),
}
