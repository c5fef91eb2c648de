//! What ACL LOAD and ACL SAVE answer when their work on the file of users is done.

use std::fmt;

use ordain_model::Writer;

use super::{Access, FileError, Users};

/// The reason why ACL LOAD or ACL SAVE failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsersFileError {
    /// The node has no such file.
    NoFile,
    /// The file cannot be read.
    Unread(String),
    /// The file's text is no ACL file; the users are as they were.
    Wrong(FileError),
    /// The file cannot be written; it is as it was.
    Unwritten(String),
}

impl fmt::Display for UsersFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsersFileError::NoFile => f.write_str(
                "this node has no ACL file: start it with --users-file, or make users with ACL SETUSER, which lasts until \
                 the node stops",
            ),
            UsersFileError::Unread(reason) => write!(f, "the ACL file was not read: {reason}"),
            UsersFileError::Wrong(error) => {
                write!(f, "the ACL file is wrong, and the users are as they were: {error}")
            }
            UsersFileError::Unwritten(reason) => write!(f, "the ACL file was not written: {reason}"),
        }
    }
}

impl std::error::Error for UsersFileError {}

impl UsersFileError {
    /// The reply of ACL LOAD or ACL SAVE.
    pub fn reply(done: Result<(), UsersFileError>) -> Vec<u8> {
        let mut reply = Vec::new();
        match done {
            Ok(()) => Writer(&mut reply).ok(),
            Err(error) => Writer(&mut reply).error(format!("ERR {error}")),
        }
        reply
    }
}

impl Users {
    /// The users of an ACL file that was read.
    ///
    /// # Errors
    /// [`UsersFileError`].
    pub fn read(text: Result<Vec<u8>, String>) -> Result<Users, UsersFileError> {
        Users::parse(&text.map_err(UsersFileError::Unread)?).map_err(UsersFileError::Wrong)
    }
}

impl Access {
    /// Has these users in the place of those that there are; one that is as it was stays the same one.
    pub fn replace(&self, users: Users) {
        let replace = |all: &mut Users| {
            all.replace(users);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.change(replace);
    }
}
