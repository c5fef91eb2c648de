//! Services that not all engines have: what a session asks for before it lets a client rely on it.

/// A service of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Interactive transactions: `TXN.BEGIN` to `TXN.COMMIT`.
    Interactive,
    /// Requests of a session take effect at most once, however often they are sent.
    Sessions,
    /// Slots move between partitions.
    Moves,
    /// Checkpoints are taken.
    Checkpoints,
}

/// The services that the engines behind a gateway have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Services {
    /// [`Service::Interactive`] is there.
    pub interactive: bool,
    /// [`Service::Sessions`] is there.
    pub sessions: bool,
    /// [`Service::Moves`] is there.
    pub moves: bool,
    /// [`Service::Checkpoints`] is there.
    pub checkpoints: bool,
}

/// A client has asked for a service that the engine does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ERR the engine of this node {}: see ordain engines", match .0 {
    Service::Interactive => "has no interactive transactions",
    Service::Sessions => "does not remember requests of sessions",
    Service::Moves => "does not move slots",
    Service::Checkpoints => "takes no checkpoints",
})]
pub struct NotServed(pub Service);

impl Services {
    /// All of them.
    pub const ALL: Services = Services { interactive: true, sessions: true, moves: true, checkpoints: true };
    /// None of them.
    pub const NONE: Services =
        Services { interactive: false, sessions: false, moves: false, checkpoints: false };

    /// Checks that a service is there.
    ///
    /// # Errors
    /// It is not.
    pub const fn require(self, service: Service) -> Result<(), NotServed> {
        let is_there = match service {
            Service::Interactive => self.interactive,
            Service::Sessions => self.sessions,
            Service::Moves => self.moves,
            Service::Checkpoints => self.checkpoints,
        };
        if is_there { Ok(()) } else { Err(NotServed(service)) }
    }
}
