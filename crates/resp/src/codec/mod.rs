//! RESP as bytes: requests in, replies out. No state of the connection beyond a half-read command.

pub mod reply;
pub mod request;

pub(crate) use reply::Encoding;
pub use reply::{Protocol, encode};
pub use request::{ProtocolError, Refusal, RequestLimits, RequestParser, Step};
