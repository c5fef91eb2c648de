//! What passes between a gateway and whatever engine stands behind it, whichever it is.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::outcome::OutcomeBatch;

/// A message of the front door.
#[derive(Clone, Debug)]
pub enum Front {
    /// Gateway to engine: run these.
    Submit(Arc<Chunk>),
    /// Engine to gateway: these have ended.
    Outcomes(OutcomeBatch),
}
