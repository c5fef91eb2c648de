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
        Make::Commit(of) => visitor.visit(CommitFamily { engine: of, services: engine.can().services() }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_family::{NodeSettings, Services};
    use ordain_model::Registry;

    use super::*;
    use crate::registry::{Engine, engines};

    /// The services of the gateways of an engine.
    struct Served(Engine);

    impl EngineVisitor for Served {
        type Output = Services;

        fn visit<F: Family>(self, family: F) -> Services {
            let settings = NodeSettings::new(self.0.defaults());
            family.gateway(&settings, 0, 1, &Arc::new(Registry::default())).backend().services()
        }
    }

    #[test]
    fn sessions_are_served_what_the_registry_says() {
        for engine in engines() {
            assert_eq!(with_family(engine, Served(engine)), engine.can().services(), "{engine:?}");
        }
    }
}
