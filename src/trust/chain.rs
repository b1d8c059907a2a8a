//! From a signer's certificate to a root: which chains there are, and whether one holds.
//!
//! A chain is first put together by names, constraints and dates alone. Then its signatures are
//! checked from the root downwards, so that no key is used before somebody who is trusted vouched
//! for it. Both have budgets: certificates of the same name could make any number of chains.
//!
//! | rule | signer | authorities between | root |
//! |---|---|---|---|
//! | X.509 version 3 | required | required | not required |
//! | basic constraints | must not be an authority, unless it is itself a root | CA, path length obeyed | CA if version 3, path length obeyed |
//! | key usage, if present | digitalSignature | keyCertSign | not looked at |
//! | extended key usage, if present | codeSigning, emailProtection or any | the same | not looked at |
//! | validity | checked | checked | checked |
//! | name constraints | refused | refused | refused |
//! | critical extensions that are unknown | refused | refused | not looked at |
//! | revocation lists | out of scope | out of scope | out of scope |
//!
//! The reference since 1.3 asks for codeSigning alone and does not look at the dates and the path
//! length of a root; before, it asked for emailProtection, and looked at both, as OpenSSL does. A
//! certificate that is itself named as a root is trusted as a signer, and as an authority, without
//! any above it.

use super::x509::Certificate;
use super::Reason;
use crate::clock::Now;

/// Most authorities between signer and root.
const MAX_BETWEEN: usize = 4;

/// Work that one bundle's signatures may cause: candidates looked at, and signatures checked.
#[derive(Debug)]
pub(super) struct Budget {
    candidates: u32,
    checks: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            candidates: 20_000,
            checks: 128,
        }
    }
}

impl Budget {
    fn candidate(&mut self) -> Result<(), Reason> {
        spend(&mut self.candidates)
    }

    pub(super) fn check(&mut self) -> Result<(), Reason> {
        spend(&mut self.checks)
    }
}

fn spend(left: &mut u32) -> Result<(), Reason> {
    let less = left.checked_sub(1);
    *left = less.ok_or("there are more certificates and signatures than are tried")?;
    Ok(())
}

/// The certificates of a chain: the signer's first, the root last.
pub(super) type Chain<'s, 'a> = Vec<&'s Certificate<'a>>;

/// What a chain is looked for with.
pub(super) struct Search<'s, 'a> {
    /// Certificates that came with the signature.
    pub(super) pool: &'s [Certificate<'a>],
    pub(super) roots: &'s [Certificate<'a>],
    pub(super) now: Now,
}

impl<'s, 'a> Search<'s, 'a> {
    /// A chain from this signer to a root that holds.
    pub(super) fn find(
        &self,
        signer: &'s Certificate<'a>,
        budget: &mut Budget,
    ) -> Result<Chain<'s, 'a>, Reason> {
        signer.may_sign()?;
        signer.check_dates(&self.now)?;
        if self.is_root(signer) {
            return Ok(vec![signer]);
        }
        if signer.is_authority() {
            return Err(format!(
                "certificate {:?} cannot be used: it is one of an authority",
                signer.name()
            ));
        }
        let mut chain = vec![signer];
        self.extend(&mut chain, budget)?;
        Ok(chain)
    }

    fn is_root(&self, certificate: &Certificate<'_>) -> bool {
        self.roots.iter().any(|root| root.raw == certificate.raw)
    }

    /// Completes the chain, or says why there is none. What is said is of the last candidate that
    /// could have been one.
    fn extend(&self, chain: &mut Chain<'s, 'a>, budget: &mut Budget) -> Result<(), Reason> {
        let Some(last) = chain.last().copied() else {
            return Ok(());
        };
        // The signer is none.
        let between = chain.len() - 1;
        let mut reason = format!(
            "no trusted root is above certificate {:?}: its issuer {:?} is not trusted here{}",
            last.name(),
            last.issuer_name(),
            if self.is_in_pool(last) {
                ""
            } else {
                ", and does not come with the signature"
            }
        );
        for root in self.roots {
            budget.candidate()?;
            if root.subject.raw != last.issuer.raw {
                continue;
            }
            chain.push(root);
            let result = root
                .may_issue_as_root(between)
                .and_then(|()| root.check_dates(&self.now))
                .and_then(|()| check_signatures(chain, budget));
            match result {
                Ok(()) => return Ok(()),
                Err(other) => reason = other,
            }
            chain.pop();
        }
        for issuer in self.pool {
            budget.candidate()?;
            let used = chain.iter().any(|other| other.raw == issuer.raw);
            if used || issuer.subject.raw != last.issuer.raw {
                continue;
            }
            if between == MAX_BETWEEN {
                return Err("there are too many authorities above the signer".to_owned());
            }
            chain.push(issuer);
            let result = issuer
                .may_issue(between)
                .and_then(|()| issuer.check_dates(&self.now))
                .and_then(|()| {
                    if self.is_root(issuer) {
                        check_signatures(chain, budget)
                    } else {
                        self.extend(chain, budget)
                    }
                });
            match result {
                Ok(()) => return Ok(()),
                Err(other) => reason = other,
            }
            chain.pop();
        }
        Err(reason)
    }

    fn is_in_pool(&self, certificate: &Certificate<'_>) -> bool {
        let mut pool = self.pool.iter();
        pool.any(|issuer| issuer.subject.raw == certificate.issuer.raw)
    }
}

/// The signatures of a chain, from the root downwards.
fn check_signatures(chain: &[&Certificate<'_>], budget: &mut Budget) -> Result<(), Reason> {
    for pair in chain.windows(2).rev() {
        if let [certificate, issuer] = pair {
            budget.check()?;
            certificate.check_signature(issuer)?;
        }
    }
    Ok(())
}
