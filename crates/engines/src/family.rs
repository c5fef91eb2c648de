//! From an engine of the registry to its family: the only place where families are told apart.

use ordain_commit::CommitFamily;
use ordain_deterministic::assembly::Deterministic;
use ordain_family::Family;

use crate::registry::{Engine, Make};

/// Work that is done with an engine's family, whichever that is.
pub trait EngineVisitor {
    /// What comes of it.
    type Output;

    /// Does the work.
    fn visit<F: Family>(self, family: F) -> Self::Output;
}

/// Does some work with the family of an engine.
pub fn with_family<V: EngineVisitor>(engine: Engine, visitor: V) -> V::Output {
    match engine.make() {
        Make::Deterministic(scheduling) => visitor.visit(Deterministic::new(scheduling)),
        Make::Commit(engine) => visitor.visit(CommitFamily(engine)),
    }
}
