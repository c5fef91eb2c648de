//! The vocabulary of Ordain: what a key, a value, a transaction and its result are.
//!
//! Everything else depends on this crate and it depends on nothing of ours. It holds no thread, clock,
//! socket or file; every function is a pure function of its arguments, so two replicas, two drivers and two
//! runs of one input log compute the same bytes.
//!
//! The way to read it: [`ids`], [`key`], [`placement`], [`layout`], [`map`] and [`children`] name things; [`value`] and [`cell`] are what a record
//! holds;
//! [`datum`] is what a fragment or a transaction answers; [`args`], [`plan`] and [`procedure`] are how a
//! transaction is written down (DESIGN.md, idea 2); [`chunk`] and [`batch`] are how transactions travel;
//! [`outcome`] is how their results travel back; [`serial`] and [`mod@reference`] run plans one at a time and
//! are the oracle for every engine.

pub mod args;
pub mod backoff;
pub mod batch;
pub mod cell;
pub mod checkpoint_mode;
pub mod children;
pub mod chunk;
pub mod compact;
pub mod computing;
pub mod datum;
pub mod digest;
pub mod doubts;
pub mod error;
mod evicted;
pub mod execution;
pub mod expiry;
pub mod fetch;
pub mod flow;
mod front;
pub mod gc_ids;
pub mod histogram;
pub mod ids;
pub mod install;
mod interactive;
pub mod isolation;
pub mod key;
pub mod layout;
pub mod limits;
pub mod map;
mod named;
pub mod options;
pub mod outcome;
pub mod placement;
pub mod plan;
pub mod prewrite;
pub mod procedure;
pub mod random;
pub mod reads;
pub mod reference;
mod ro_local;
mod ro_mode;
pub mod serial;
pub mod stamp;
pub mod stamp_source;
pub mod system;
pub mod table;
pub mod table_procedure;
pub mod value;
pub mod wire;

pub use args::{ArgIter, Args, ArgsBuilder};
pub use backoff::Backoff;
pub use batch::{Batch, Lookup, Placed};
pub use cell::{Cell, CellMut, Journal};
pub use checkpoint_mode::CheckpointMode;
pub use children::{Children, split_child_key};
pub use chunk::{Call, Chunk, Txn};
pub use computing::{Computations, Ending, Stop, Stopwatch};
pub use datum::{Datum, Writer};
pub use digest::{Digest, DigestSpan};
pub use doubts::{Doubt, Doubts};
pub use error::{Abort, PlanError};
pub use evicted::{Evicted, FramePlace, ValueFile};
pub use execution::{Cascade, Choice, Execution};
pub use expiry::{Expiry, StringForm};
pub use flow::{Flow, PauseNo};
pub use front::Front;
pub use gc_ids::GcIds;
pub use histogram::Histogram;
pub use ids::{
    ChunkNo, Db, Epoch, GatewayId, Gsn, Micros, Millis, PartitionId, ProcedureId, RequestNo, SessionId,
    SlotNo,
};
pub use install::Install;
pub use interactive::{OpenId, Step};
pub use isolation::Isolation;
pub use key::{KeyHash, Position};
pub use layout::{Layout, Layouts, PartitionSet};
pub use limits::Limits;
pub use map::{Map, Place, VirtualShard, VirtualShards};
pub use named::UnknownName;
pub use options::{Need, Offer, OptionError, OptionInfo, OptionKind, OptionValue, Options};
pub use outcome::{KeptReply, OutcomeBatch, OutcomeStatus};
pub use placement::Placement;
pub use plan::{Access, Fragment, Planner};
pub use prewrite::Prewrite;
pub use procedure::{
    FragmentContext, Frame, Known, Members, Procedure, Reconnaissance, Registry, ReplyContext, Target,
};
pub use random::Random;
pub use reads::{Reads, Snapshot, View};
pub use reference::ReferenceExecutor;
pub use ro_local::RoLocal;
pub use ro_mode::RoMode;
pub use stamp::{Effect, Stamp, Token, Version};
pub use stamp_source::StampSource;
pub use table::Table;
pub use value::{HashValue, Value};
