//! What the simulator has to be told about the system it drives: how a node is built, where its front doors
//! are, and how its durable log is read back.

use std::fmt::Debug;
use std::sync::Arc;

use ordain_model::{Batch, Digest, Front, GatewayId, Registry};
use ordain_role::{Address, Directory, NodeId, Role};

/// The roles of a node, by number.
pub type Roles<M> = Vec<(u16, Box<dyn Role<Message = M>>)>;

/// A place where clients connect: the simulator keeps a gateway there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontDoor {
    /// The gateway's number.
    pub id: GatewayId,
    /// Where outcomes for it are sent.
    pub address: Address,
    /// Where it sends what its clients ask for.
    pub engine: Address,
}

/// A system under simulation.
pub trait System {
    /// What its roles say to each other and to the front doors.
    type Message: Clone + Debug + From<Front> + TryInto<Front>;

    /// The procedures there are.
    fn registry(&self) -> Arc<Registry>;

    /// Builds the roles of a node from what is on its disk: at its first start, which has incarnation 0, and
    /// again after every crash.
    ///
    /// # Errors
    /// Why the node cannot start. That is a violation, unless the disk is full or the node crashed in the
    /// middle of it.
    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Self::Message>, String>;

    /// Front door `n` of a node.
    fn door(&self, node: NodeId, n: u16) -> FrontDoor;

    /// The batches in a node's durable log, in order. The directory is a copy: recovery may change it.
    ///
    /// # Errors
    /// Why the log cannot be read, which is a violation.
    fn log(&mut self, node: NodeId, disk: &mut dyn Directory) -> Result<Vec<Batch>, String>;

    /// The digest of a node's state, if the system can tell without a transaction. Asked when nothing is
    /// under way.
    fn digest(&mut self, node: NodeId) -> Option<Digest> {
        let _ = node;
        None
    }
}
