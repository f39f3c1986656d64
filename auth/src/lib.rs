//! Tokens with which a server speaks to a sandbox's runtime over a network.
//!
//! The server holds private keys and signs a token for one pod, good for a minute at most. The runtime holds public keys
//! only, so nothing in a sandbox opens another. A token is a JSON Web Signature (RFC 7515) in its compact form with
//! Ed25519 (RFC 8037) and nothing else: a verifier that lets the token choose among algorithms has been the hole in many.
//!
//! Keys are files, as Kubernetes mounts them, and are read again when they change. To rotate: put the new private key
//! beside the old one with the file `current` still naming the old, publish [`Signer::jwks`], wait until it has arrived
//! everywhere, then let `current` name the new one.
#![forbid(unsafe_code)]

mod claims;
mod directory;
mod jwk;
mod keyring;
mod signer;
mod token;
mod verifier;

pub use self::{
    claims::{Claims, Expected, MAX_LIFE, Scope},
    jwk::JWKS_FILE,
    keyring::{KeyError, Keyring, NewKey},
    signer::Signer,
    token::TokenError,
    verifier::Verifier,
};
