//! EVALSHA: a transaction as a Lua script, which the server keeps under its digest.

use anyhow::{Context, bail};
use ordain_model::Datum;
use ordain_resp::client::Commands;

use crate::resp::link::{Link, no_error};

/// A script that a server keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    sha: String,
}

impl Script {
    /// Loads a script into the server.
    pub fn load(link: &mut Link, body: &str) -> anyhow::Result<Script> {
        let reply = link.ask(&["SCRIPT", "LOAD", body])?;
        no_error(&reply).context("the server does not take a script")?;
        match Datum::first(&reply).as_bytes() {
            Some(sha) => Ok(Script { sha: String::from_utf8_lossy(sha).into_owned() }),
            None => bail!("SCRIPT LOAD answered no digest"),
        }
    }

    /// The script that a server keeps under a digest.
    #[cfg(test)]
    pub fn kept(sha: &str) -> Script {
        Script { sha: sha.to_owned() }
    }

    /// Begins a call of the script with so many keys and arguments, which are to follow.
    pub fn call<'a>(&self, out: &'a mut Commands, keys: usize, args: usize) -> &'a mut Commands {
        out.begin(3 + keys + args).word("EVALSHA").word(&self.sha).number(keys as i64)
    }
}
