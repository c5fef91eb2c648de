//! Lua 5.1 for scripts that are not trusted.
//!
//! An interpreter whose outcome is a function of the script, its arguments and the answers of its host alone: a script
//! cannot end the process, cannot run or allocate without bound, and finds nothing that another left
//! ([decision 31](../../../docs/decisions/0031-an-interpreter-of-our-own.md)).
//!
//! - No unsafe code. Values are places in arenas ([`heap::Heap`]), which a run fills and its end empties.
//! - Work is charged by what is touched: [`cost`] and [`library::ROWS`] have a row for everything a script can reach.
//! - Memory is charged as it is asked for; nothing is collected while a script runs.
//! - A walk of a table goes by how the table was made; no address and no hash shows.

#![forbid(unsafe_code)]

mod ast;
pub mod budget;
mod calls;
pub mod compiler;
pub mod cost;
mod faults;
pub mod heap;
mod lexer;
pub mod library;
pub mod machine;
mod metamethods;
pub mod number;
mod op;
mod operators;
mod parser;
mod pattern;
mod table;
#[cfg(test)]
mod tests;
pub mod value;
mod vm;

pub use budget::{Budget, Death, Fault, Result};
pub use compiler::{CompileError, Program, chunk_name, compile};
pub use library::{Body, Row};
pub use machine::{Args, Host, Machine, NoHost};
pub use value::{Native, Str, TableRef, Value};
