//! What a session may do: the rights of its user, asked for each command.

use std::sync::Arc;

use ordain_commands::rights::{Denied, full_name};
use ordain_commands::script::with_rights;
use ordain_commands::{Action, Command};
use ordain_gateway::Gateway;
use ordain_model::{ProcedureId, Registry};

use super::{Closing, Mode, Session, Words};
use crate::acl::{Reason, Refusal, Users};
use crate::shared::{Context, Shared};

/// The procedure to submit for one that a user calls, and the rights that stand before its arguments: those of a script
/// whose user's are restricted.
pub(super) fn carrying<'r>(
    procedure: ProcedureId,
    rights: Option<&'r [u8]>,
    gateway: &Gateway,
) -> (ProcedureId, Option<&'r [u8]>) {
    // Planted, RIGHTS-TRAVEL.
    let rights = rights.filter(|_| !gateway.loses_rights());
    match rights.zip(with_rights(procedure)) {
        Some((rights, limited)) => (limited, Some(rights)),
        None => (procedure, None),
    }
}

/// Tells whether a command runs a script, whose commands are checked as it calls them.
pub(super) fn is_script(command: &Command) -> bool {
    match command.action {
        Action::Procedure { id, .. } => with_rights(id).is_some(),
        Action::Function { .. } => true,
        Action::Session(_) => false,
    }
}

/// What a command in a MULTI block answers whose rights were taken away before EXEC.
pub(super) const fn changed(denied: Denied) -> &'static str {
    match denied {
        Denied::Command => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to execute the command or subcommand"
        }
        Denied::Key(_) => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to touch the specified keys"
        }
        Denied::Channel(_) => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to access one of the channels used as arguments \
             to the command"
        }
    }
}

impl Session {
    /// Tells whether the user may run a command.
    pub(super) fn check_rights(
        &self,
        command: &Command,
        words: &Words<'_>,
        registry: &Registry,
    ) -> Result<(), Denied> {
        let rights = self.user.rights();
        rights.check(command, words)?;
        // A native procedure finds keys among its arguments as it likes.
        let is_native = matches!(command.action, Action::Function { .. })
            && words.get(1).is_some_and(|name| registry.find_native(name).is_some());
        if is_native && !rights.permits_on_all_keys(command, words) {
            return Err(Denied::Key(1));
        }
        Ok(())
    }

    /// Refuses a command that the user may not run.
    pub(super) fn deny(
        &mut self,
        command: &Command,
        words: &Words<'_>,
        denied: Denied,
        cx: &mut Context<'_>,
    ) {
        let name = full_name(command, words);
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let (reason, object, text) = match denied {
            Denied::Command => (
                Reason::Command,
                name.as_bytes(),
                format!("NOPERM this user has no permissions to run the '{name}' command"),
            ),
            Denied::Key(at) => (
                Reason::Key,
                word(at),
                "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned(),
            ),
            Denied::Channel(at) => (
                Reason::Channel,
                word(at),
                "NOPERM this user has no permissions to access one of the channels used as arguments"
                    .to_owned(),
            ),
        };
        cx.shared.access.count(reason);
        let user = self.user.clone();
        self.note_refusal(reason, object, user.name(), cx);
        self.reject(text.as_bytes(), cx);
    }

    /// Notes a refusal in ACL LOG.
    pub(super) fn note_refusal(&self, reason: Reason, object: &[u8], user: &[u8], cx: &Context<'_>) {
        let mut client = String::new();
        self.describe(cx.now, &mut client);
        cx.shared.access.note(Refusal {
            count: 1,
            reason,
            in_multi: matches!(self.mode, Mode::Multi(_)),
            object: object.into(),
            user: user.into(),
            at: cx.now,
            client: client.trim_end().into(),
        });
    }

    /// Takes the user's rights as they are now. A connection whose user is gone is closed.
    pub fn note_users(&mut self, shared: &Shared) {
        self.users_version = shared.access.version();
        match shared.access.again(self.user.name(), self.user.id()) {
            Some(user) => {
                self.is_authenticated |= user.is_open() && user.name() == crate::acl::DEFAULT;
                self.user = user;
            }
            None if self.closing == Closing::No => self.kill(),
            None => {}
        }
    }

    /// The user has been removed by its own connection, which is closed when that is answered.
    pub(super) fn leave_if_gone(&mut self, shared: &Shared) {
        let is_there =
            |users: &Users| users.get(self.user.name()).is_some_and(|user| user.id() == self.user.id());
        if !shared.access.users(is_there) {
            self.user = Arc::new(crate::acl::User::closed(self.user.name(), self.user.id()));
            self.drain();
        }
    }
}
