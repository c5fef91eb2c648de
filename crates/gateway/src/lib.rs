//! The gateway: where requests become chunks and outcomes become answers.
//!
//! One gateway serves one event loop. It plans what clients ask for, gathers it into the chunk that the engine
//! behind it will order, and remembers who asked. It knows no protocol and no engine.

use std::sync::Arc;

use ordain_model::{
    ArgsBuilder, Call, Chunk, GatewayId, Gsn, OutcomeBatch, OutcomeStatus, PlanError, Registry,
};

/// The caller's own name for a request; comes back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// Whose request.
    pub ticket: Ticket,
    /// How it ended.
    pub status: OutcomeStatus,
    /// Its place in the serial order.
    pub gsn: Gsn,
    /// The reply, encoded as a [`ordain_model::Datum`].
    pub reply: &'a [u8],
}

/// Builds chunks and hands out answers.
#[derive(Debug)]
pub struct Gateway {
    id: GatewayId,
    registry: Arc<Registry>,
}

impl Gateway {
    /// A gateway with nothing outstanding.
    pub fn new(id: GatewayId, registry: Arc<Registry>) -> Gateway {
        Gateway { id, registry }
    }

    /// The procedures there are.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Adds a request to the chunk being built.
    ///
    /// # Errors
    /// The arguments were refused; nothing was submitted and no answer will come.
    pub fn submit(
        &mut self,
        ticket: Ticket,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<(), PlanError> {
        let _ = (ticket, call, write_args, self.id);
        Err(PlanError::fixed("ERR gateway under construction"))
    }

    /// How many requests are submitted and not finished.
    pub fn outstanding(&self) -> usize {
        0
    }

    /// Closes the chunk being built, if anything is in it.
    pub fn flush(&mut self) -> Option<Arc<Chunk>> {
        None
    }

    /// Takes outcomes and reports each request that they finish.
    pub fn take_outcomes(&mut self, batch: &OutcomeBatch, done: impl FnMut(Finished<'_>)) {
        let _ = (batch, done);
    }
}
