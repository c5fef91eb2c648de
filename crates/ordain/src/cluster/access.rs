//! How `ordain cluster` gets to the nodes of a cluster: at which addresses, as which user, in TLS or not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ordain_node::admin_client::{AskError, Asker, Login, Target};
use ordain_node::{secrets, tls};
use rustls::ClientConfig;

use super::{RECORD, Record};
use crate::serve::{ADMIN, DEFAULT_USER, ForOperators};

/// How long a node has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What to do about a login that is not let in.
const LOG_IN: &str = "name a user with the right to 'info' with --user, and its password with --password-file or \
                      ORDAIN_PASSWORD, or the cluster's file with --config";

/// The flags that name a cluster and a login.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// The admin address of any node, https://HOST:PORT where it is in TLS [default: those of --config, or of cluster.json in
    /// --data-dir, else 127.0.0.1:9121]
    #[arg(long, env = "ORDAIN_ADMIN", value_name = "ADDR")]
    admin: Option<Target>,
    /// The data directory of a cluster that `ordain cluster up` runs
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// The configuration file of the nodes: their addresses, login and authority, as far as no flag says otherwise
    #[arg(long, env = "ORDAIN_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The user to log in as, where the nodes ask for a login [default: default]
    #[arg(long, env = "ORDAIN_USER", value_name = "NAME")]
    user: Option<String>,
    /// A file with the password of that user
    #[arg(long, env = "ORDAIN_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// That password. Other users of this machine can read it in the list of processes: better set ORDAIN_PASSWORD, or
    /// --password-file
    #[arg(long, env = "ORDAIN_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,
    /// The certificates of the authorities that those of the nodes must be of, PEM, where they are in TLS
    #[arg(long, env = "ORDAIN_TLS_CA_CERT_FILE", value_name = "FILE")]
    tls_ca_cert_file: Option<PathBuf>,
    /// A certificate to show to nodes that ask for one, PEM
    #[arg(long, env = "ORDAIN_TLS_CERT_FILE", value_name = "FILE", requires = "tls_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, env = "ORDAIN_TLS_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    tls_key_file: Option<PathBuf>,
}

/// The way to the nodes of a cluster.
#[derive(Debug)]
pub(super) struct Way {
    /// The admin servers to ask, in this order, until one answers.
    pub(super) candidates: Vec<Target>,
    asker: Asker,
    /// What connections to the ports for clients are in TLS with, if nodes offer that.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// They are in TLS or are not made.
    pub(super) must_be_tls: bool,
}

impl ClusterArgs {
    /// Finds the way: what was given here counts for more than what files say.
    ///
    /// # Errors
    /// A file cannot be used, or what was given does not go together.
    pub(super) fn way(&self) -> anyhow::Result<Way> {
        if std::env::args_os()
            .any(|word| word == "--password" || word.to_string_lossy().starts_with("--password="))
        {
            eprintln!(
                "warning: --password stands in the list of processes, which every user of this machine can read: set \
                 ORDAIN_PASSWORD or --password-file instead"
            );
        }
        let named = self.config.as_deref().map(ForOperators::read).transpose()?;
        let record = match (&self.admin, &named) {
            (None, None) => self.record()?,
            _ => None,
        };
        // A user who may not read the file of a cluster that runs here may ask all the same, where no login is needed.
        let of_record = record.as_ref().and_then(|record| ForOperators::read(&record.config).ok());
        let of_file = named.or(of_record).unwrap_or_default();
        let candidates = match (&self.admin, record) {
            (Some(admin), _) => vec![admin.clone()],
            (None, _) if !of_file.admin.is_empty() => of_file.admin,
            (None, Some(record)) => {
                record.nodes.into_iter().map(|node| node.admin.parse()).collect::<Result<_, _>>()?
            }
            (None, None) => vec![Target { address: ADMIN.to_string(), is_tls: false }],
        };
        let login = self.login()?.or(of_file.login);
        let authority = self.tls_ca_cert_file.clone().or(of_file.authority);
        let own = self.tls_cert_file.as_deref().zip(self.tls_key_file.as_deref());
        let tls = authority.map(|ca| tls::client(&ca, own)).transpose()?;
        let trust = tls.clone().map(Into::into);
        let must_be_tls = self.tls_ca_cert_file.is_some() || of_file.has_client_tls;
        Ok(Way { candidates, asker: Asker { login, trust, patience: ANSWER_WITHIN }, tls, must_be_tls })
    }

    fn login(&self) -> anyhow::Result<Option<Login>> {
        let password = match (&self.password, &self.password_file) {
            (Some(_), Some(_)) => {
                anyhow::bail!("--password and --password-file both give the password: drop one")
            }
            (None, Some(path)) => Some(secrets::read_password(path)?),
            (password, None) => password.clone(),
        };
        match (&self.user, password) {
            (Some(user), None) => anyhow::bail!(
                "--user {user} needs a password: name its file with --password-file, or set ORDAIN_PASSWORD"
            ),
            (user, password) => Ok(password.map(|password| {
                let user = user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned());
                Login { user, password }
            })),
        }
    }

    /// The record that `ordain cluster up` has written of a cluster in the data directory.
    fn record(&self) -> anyhow::Result<Option<Record>> {
        let path = self.data_dir.join(RECORD);
        let Ok(bytes) = std::fs::read(&path) else { return Ok(None) };
        let record = serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "{} is not what `ordain cluster up` has written: name a node with --admin",
                path.display()
            )
        })?;
        Ok(Some(record))
    }
}

impl Way {
    /// Asks a node for what is at a path of its admin server.
    ///
    /// # Errors
    /// Why it did not say, in words, and what to do about it.
    pub(super) fn get(&self, target: &Target, path: &str) -> Result<Vec<u8>, AskError> {
        self.asker.get_now(target, path)
    }

    /// The login to show where one is asked for.
    pub(super) fn login(&self) -> Option<&Login> {
        self.asker.login.as_ref()
    }
}

/// The reason why a node gave no answer, and what to do about it.
pub(super) fn explain(error: &AskError) -> String {
    match error {
        AskError::NoAuthority => format!("{error} with --tls-ca-cert-file"),
        error if error.is_about_login() => format!("{error}: {LOG_IN}"),
        error => error.to_string(),
    }
}
