//! What a client knows of servers (RFC 7413 §4.1.3): cookie and MSS, in which form the server wants
//! to be asked, and whether SYNs with text reach it.

use std::collections::BTreeMap;

use tidelane_flow::FastOpenPolicy;
use tidelane_slowpath::Answer;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{FastOpenCookie, FastOpenOption, IpAddress};

/// Servers that are remembered (§4.1.3: the cache is bounded).
const SERVERS_MAX: usize = 1024;
/// SYNs with text that are lost in a row before there are no more for a while (§4.1.3.1).
const LOSSES_MIN: u32 = 2;
/// That while, after no loss; it doubles with each.
const PAUSE: Duration = Duration::from_secs(60);
/// Losses after which it does not double any more: two days.
const LOSSES_MAX: u32 = 11;

/// In which forms a server was asked and gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Tried {
    #[default]
    None,
    Standard,
    Both,
}

/// What is known of one server.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    mss: Option<u16>,
    /// The cookie, in the form that the server gave it in.
    cookie: Option<FastOpenOption>,
    tried: Tried,
    /// SYNs with text in a row that were lost.
    losses: u32,
    lost_at: Instant,
    /// When it was last used, in uses.
    used: u64,
}

/// What the SYN to a server may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Its option.
    pub option: Option<FastOpenOption>,
    /// Whether it may carry text.
    pub text: bool,
    /// The server's MSS, if it is known.
    pub mss: Option<u16>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    servers: BTreeMap<IpAddress, Server>,
    /// The same by last use.
    order: BTreeMap<u64, IpAddress>,
    uses: u64,
}

impl Cache {
    /// The SYN to `peer`, of a socket that may do `without_cookie`.
    pub fn offer(
        &self,
        now: Instant,
        peer: IpAddress,
        policy: FastOpenPolicy,
        without_cookie: bool,
    ) -> Offer {
        let known = self.servers.get(&peer).copied().unwrap_or_default();
        let mss = known.mss;
        let paused = known.losses >= LOSSES_MIN
            && now < known.lost_at + PAUSE * (1u64 << known.losses.min(LOSSES_MAX));
        if !policy.client || paused {
            return Offer::default();
        }
        let (option, text) = match known.cookie {
            _ if without_cookie || policy.client_without_cookie => (None, true),
            Some(cookie) => (Some(cookie), true),
            None => {
                let request = FastOpenOption {
                    cookie: FastOpenCookie::REQUEST,
                    experimental: known.tried == Tried::Standard,
                };
                (Some(request), false)
            }
        };
        Offer { option, text, mss }
    }

    /// What a SYN,ACK said.
    pub fn learn(&mut self, now: Instant, peer: IpAddress, answer: &Answer) {
        let server = self.touch(peer);
        server.mss = answer.mss.or(server.mss);
        match (answer.cookie, answer.asked_experimental) {
            (Some(cookie), _) => server.cookie = Some(cookie),
            (None, Some(experimental))
                if server.cookie.is_none() && !answer.text && !answer.repeated =>
            {
                let tried = if experimental {
                    Tried::Both
                } else {
                    Tried::Standard
                };
                server.tried = server.tried.max(tried);
            }
            _ => {}
        }
        if answer.lost {
            server.losses = server.losses.saturating_add(1);
            server.lost_at = now;
        } else {
            server.losses = 0;
        }
    }

    /// Forgets all servers.
    pub fn clear(&mut self) {
        self.servers.clear();
        self.order.clear();
    }

    /// The entry of `peer`, as the one used last. The one unused longest makes room.
    fn touch(&mut self, peer: IpAddress) -> &mut Server {
        self.uses += 1;
        let known = self.servers.get(&peer).map(|server| server.used);
        if let Some(used) = known {
            self.order.remove(&used);
        } else if self.servers.len() >= SERVERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.servers.remove(&oldest);
        }
        self.order.insert(self.uses, peer);
        let server = self.servers.entry(peer).or_default();
        server.used = self.uses;
        server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: FastOpenPolicy = FastOpenPolicy::from_bits(1);
    const NOW: Instant = Instant(77_000_000_000);
    const NOTHING: Answer = Answer {
        mss: Some(1000),
        cookie: None,
        asked_experimental: Some(false),
        text: false,
        repeated: false,
        lost: false,
    };

    fn server(number: u16) -> IpAddress {
        let [high, low] = number.to_be_bytes();
        IpAddress::from_v4([10, 0, high, low])
    }

    fn cookie(byte: u8) -> FastOpenOption {
        FastOpenOption {
            cookie: FastOpenCookie::new(&[byte; 8]).unwrap(),
            experimental: false,
        }
    }

    fn offer(cache: &Cache, now: Instant) -> Offer {
        cache.offer(now, server(1), ON, false)
    }

    #[test]
    fn rfc7413_section_4_1_3_cookie_and_mss_are_remembered() {
        let mut cache = Cache::default();
        assert!(!offer(&cache, NOW).text);
        let given = Answer {
            cookie: Some(cookie(3)),
            ..NOTHING
        };
        cache.learn(NOW, server(1), &given);
        let now = offer(&cache, NOW);
        assert_eq!((now.option, now.mss), (Some(cookie(3)), Some(1000)));
        assert!(now.text);
        assert_eq!(
            cache.offer(NOW, server(1), FastOpenPolicy::from_bits(2), false),
            Offer::default()
        );
        cache.clear();
        assert!(!offer(&cache, NOW).text);
    }

    #[test]
    fn a_server_without_cookies_is_asked_in_the_other_form_once() {
        let mut cache = Cache::default();
        let mut forms = Vec::new();
        for _ in 0..4 {
            let experimental = offer(&cache, NOW).option.unwrap().experimental;
            forms.push(experimental);
            let asked_experimental = Some(experimental);
            let answer = Answer {
                asked_experimental,
                ..NOTHING
            };
            cache.learn(NOW, server(1), &answer);
        }
        assert_eq!(forms, [false, true, false, false]);
    }

    #[test]
    fn rfc7413_section_4_1_3_1_a_path_that_loses_syns_with_text_gets_none_for_a_while() {
        let mut cache = Cache::default();
        let lost = Answer {
            text: true,
            lost: true,
            ..NOTHING
        };
        cache.learn(NOW, server(1), &lost);
        assert!(offer(&cache, NOW).option.is_some());
        cache.learn(NOW, server(1), &lost);
        assert_eq!(offer(&cache, NOW), Offer::default());
        let later = NOW + Duration::from_secs(240);
        assert!(offer(&cache, later).option.is_some());
        cache.learn(later, server(1), &NOTHING);
        assert!(offer(&cache, NOW).option.is_some());
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_what_was_unused_longest() {
        let mut cache = Cache::default();
        let given = Answer {
            cookie: Some(cookie(3)),
            ..NOTHING
        };
        for number in 0..SERVERS_MAX as u16 {
            cache.learn(NOW, server(number), &given);
        }
        cache.learn(NOW, server(0), &given);
        cache.learn(NOW, server(5000), &given);
        assert_eq!(cache.servers.len(), SERVERS_MAX);
        assert_eq!(cache.order.len(), SERVERS_MAX);
        assert!(cache.servers.contains_key(&server(0)));
        assert!(!cache.servers.contains_key(&server(1)));
    }
}
