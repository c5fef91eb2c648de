//! Steps of interactive transactions that an engine keeps open between commands.
//!
//! An engine that executes before it agrees can hold what a transaction has read and written while its client thinks. Then
//! each command is a transaction of a chunk of its own, sent as a [`Step`] of the open one, and so is the commit.

use crate::codec;
use crate::ids::{GatewayId, SessionId};

/// An open transaction: the gateway that its client stands at, and a number that the gateway gives once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId {
    /// The gateway.
    pub gateway: GatewayId,
    /// The number. It rises over the lives of the gateway's node.
    pub number: u64,
}

codec!(struct OpenId { gateway, number });

/// A step of an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The transaction.
    pub of: OpenId,
    /// The number of the step in it, from 1. The first one begins the transaction.
    pub number: u32,
    /// The session that its commit is a request of, unless it only reads: it has its home where that is kept.
    pub session: Option<SessionId>,
    /// True if the step is the commit: it runs nothing, and ends the transaction.
    pub is_commit: bool,
    /// True if a step may have written: then nobody can tell what has become of a commit that is lost.
    pub may_write: bool,
}

codec!(struct Step { of, number, session, is_commit, may_write });

impl Step {
    /// True if the step begins its transaction.
    pub const fn is_first(&self) -> bool {
        self.number == 1
    }
}
