//! Access to the admin server: for users of the node that have the right to the command INFO, whose content is similar.
//!
//! A request names a user and its password (HTTP basic authentication, which curl, browsers and Prometheus have). One
//! that names no user is the default user's, if that needs no password. `/healthz` and `/readyz` are open: probes have no
//! password, and the answer is one word.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use ordain_commands::lookup;
use ordain_model::Micros;
use ordain_resp::{Access, Attempt, DEFAULT, User};

use super::Peer;

/// The paths that need no user.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Base64 (RFC 4648, section 4) with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Puts the guard before a router.
pub(crate) fn guarded(router: Router, access: Arc<Access>) -> Router {
    router.layer(middleware::from_fn_with_state(access, guard))
}

async fn guard(
    State(access): State<Arc<Access>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let user = match credentials(request.headers()) {
        Some((name, password)) => {
            let peer = peer.to_string();
            match access.attempt(&peer, now()) {
                Attempt::Now => {}
                Attempt::After(wait) => tokio::time::sleep(Duration::from_micros(wait.0)).await,
                Attempt::Refused => return StatusCode::TOO_MANY_REQUESTS.into_response(),
            }
            let user = access.log_in(&name, &password, &peer, now());
            if user.is_none() {
                tracing::warn!(peer, "a login at the admin server failed");
            }
            user
        }
        None => access.users(|users| users.get(DEFAULT).filter(|user| user.is_open()).cloned()),
    };
    match user {
        Some(user) if may_look(&user) => next.run(request).await,
        Some(_) => (
            StatusCode::FORBIDDEN,
            "this user has no permissions to run the 'info' command, so none to look here\n",
        )
            .into_response(),
        None => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Basic realm=\"ordain\", charset=\"UTF-8\"")],
            "a user and a password of this node are needed\n",
        )
            .into_response(),
    }
}

fn may_look(user: &User) -> bool {
    let words: [&[u8]; 1] = [b"info"];
    lookup(words[0]).is_some_and(|info| user.rights().check(info, &words).is_ok())
}

fn now() -> Micros {
    Micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64)
}

/// The user and the password that a request names (RFC 7617). An empty user is the default one.
fn credentials(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let both = BASE64.decode(encoded.trim_ascii()).ok()?;
    let colon = both.iter().position(|byte| *byte == b':')?;
    let (name, password) = (&both[..colon], &both[colon + 1..]);
    let name = if name.is_empty() { DEFAULT } else { name };
    Some((name.to_vec(), password.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_the_header() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            credentials(&headers)
        };
        assert_eq!(of("Basic dTpwOnE="), Some((b"u".to_vec(), b"p:q".to_vec())));
        assert_eq!(of("basic OnA="), Some((b"default".to_vec(), b"p".to_vec())));
        assert_eq!(of("Bearer dTpw"), None);
        assert_eq!(of("Basic dTpwOnE"), Some((b"u".to_vec(), b"p:q".to_vec())), "padding may lack");
        for wrong in ["Basic dQ==", "Basic dTpwOn", "Basic dTpwOnF=", "Basic dTpw!"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
    }

    #[test]
    fn who_may_not_see_info_may_not_look() {
        let user = |rules: &str| {
            let words: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
            User::closed(b"u", 1).modified(&words).unwrap()
        };
        assert!(may_look(&user("on nopass +info")));
        assert!(!may_look(&user("on nopass +@read")));
    }
}
