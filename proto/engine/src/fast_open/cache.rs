//! The client's cookie cache (RFC 7413 §4.1.3). An entry holds a server's cookie, the server's MSS,
//! and the number of lost SYNs with data. For a server that sent no cookie, the entry holds the
//! forms of the Fast Open option (standard or experimental) in which the client has asked for a
//! cookie.

use std::collections::BTreeMap;

use tidelane_flow::FastOpenPolicy;
use tidelane_slowpath::FastOpenAnswer;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{FastOpenCookie, FastOpenOption, IpAddress};

/// Largest number of servers (§4.1.3 demands a limit).
const SERVERS_MAX: usize = 1024;
/// Number of consecutive lost SYNs with data from which Fast Open to a server pauses (§4.1.3.1).
const LOSSES_MIN: u32 = 2;
/// Unit of the pause. The pause lasts `PAUSE` times 2 to the power of the number of losses, of
/// which at most `LOSSES_MAX` count.
const PAUSE: Duration = Duration::from_secs(60);
/// Number of losses from which the pause has its full length of 34 hours.
const LOSSES_MAX: u32 = 11;

/// Forms of the Fast Open option in which the client asked a server for a cookie without success.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum TriedForms {
    #[default]
    None,
    Standard,
    Both,
}

/// Entry of one server.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    /// MSS of the server in bytes, if a connection has learned it.
    mss: Option<u16>,
    /// Cookie, in the form in which the server sent it.
    cookie: Option<FastOpenOption>,
    tried: TriedForms,
    /// Number of SYNs with data that were lost since the last answer without a loss.
    losses: u32,
    /// Time at which the client learned of the most recent loss of a SYN with data.
    lost_at: Instant,
    /// Value of `Cache::uses` when the entry was last used.
    used: u64,
}

/// Contents that the next SYN to a server may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Fast Open option of the SYN.
    pub option: Option<FastOpenOption>,
    /// True if the SYN may carry data.
    pub data: bool,
    /// MSS of the server in bytes, if a former connection has learned it.
    pub mss: Option<u16>,
}

/// Cookie cache of one client. In a full cache, a new server replaces the least recently used
/// server.
#[derive(Debug, Default)]
pub struct Cache {
    servers: BTreeMap<IpAddress, Server>,
    /// Servers by the value of `used`: the least recently used first.
    order: BTreeMap<u64, IpAddress>,
    /// Number of uses of all entries so far. The value orders the entries by their last use.
    uses: u64,
}

impl Cache {
    /// Returns the contents of the next SYN to `peer`. `without_cookie` is true if the socket has
    /// the option TCP_FASTOPEN_NO_COOKIE.
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
        let (option, data) = match known.cookie {
            _ if without_cookie || policy.client_without_cookie => (None, true),
            Some(cookie) => (Some(cookie), true),
            None => {
                let request = FastOpenOption {
                    cookie: FastOpenCookie::REQUEST,
                    experimental: known.tried == TriedForms::Standard,
                };
                (Some(request), false)
            }
        };
        Offer { option, data, mss }
    }

    /// Stores the answer of a server to a SYN with a Fast Open option or with data.
    pub fn learn(&mut self, now: Instant, peer: IpAddress, answer: &FastOpenAnswer) {
        let server = self.touch(peer);
        server.mss = answer.mss.or(server.mss);
        match (answer.cookie, answer.asked_experimental) {
            (Some(cookie), _) => server.cookie = Some(cookie),
            (None, Some(experimental))
                if server.cookie.is_none() && !answer.data && !answer.syn_retransmitted =>
            {
                let tried = if experimental {
                    TriedForms::Both
                } else {
                    TriedForms::Standard
                };
                server.tried = server.tried.max(tried);
            }
            _ => {}
        }
        if answer.syn_data_lost {
            server.losses = server.losses.saturating_add(1);
            server.lost_at = now;
        } else {
            server.losses = 0;
        }
    }

    /// Removes all servers.
    pub fn clear(&mut self) {
        self.servers.clear();
        self.order.clear();
    }

    /// Returns the entry of `peer`, and marks it as the most recently used entry. In a full cache,
    /// a new entry replaces the least recently used entry.
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
    const NOTHING: FastOpenAnswer = FastOpenAnswer {
        mss: Some(1000),
        cookie: None,
        asked_experimental: Some(false),
        data: false,
        syn_retransmitted: false,
        syn_data_lost: false,
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
        assert!(!offer(&cache, NOW).data);
        let given = FastOpenAnswer {
            cookie: Some(cookie(3)),
            ..NOTHING
        };
        cache.learn(NOW, server(1), &given);
        let now = offer(&cache, NOW);
        assert_eq!((now.option, now.mss), (Some(cookie(3)), Some(1000)));
        assert!(now.data);
        assert_eq!(
            cache.offer(NOW, server(1), FastOpenPolicy::from_bits(2), false),
            Offer::default()
        );
        cache.clear();
        assert!(!offer(&cache, NOW).data);
    }

    #[test]
    fn a_server_without_cookies_is_asked_in_the_other_form_once() {
        let mut cache = Cache::default();
        let mut forms = Vec::new();
        for _ in 0..4 {
            let experimental = offer(&cache, NOW).option.unwrap().experimental;
            forms.push(experimental);
            let asked_experimental = Some(experimental);
            let answer = FastOpenAnswer {
                asked_experimental,
                ..NOTHING
            };
            cache.learn(NOW, server(1), &answer);
        }
        assert_eq!(forms, [false, true, false, false]);
    }

    #[test]
    fn rfc7413_section_4_1_3_1_fast_open_pauses_after_lost_syns_with_data() {
        let mut cache = Cache::default();
        let syn_data_lost = FastOpenAnswer {
            data: true,
            syn_data_lost: true,
            ..NOTHING
        };
        cache.learn(NOW, server(1), &syn_data_lost);
        assert!(offer(&cache, NOW).option.is_some());
        cache.learn(NOW, server(1), &syn_data_lost);
        assert_eq!(offer(&cache, NOW), Offer::default());
        let later = NOW + Duration::from_secs(240);
        assert!(offer(&cache, later).option.is_some());
        cache.learn(later, server(1), &NOTHING);
        assert!(offer(&cache, NOW).option.is_some());
    }

    #[test]
    fn the_cache_is_bounded_and_replaces_the_least_recently_used() {
        let mut cache = Cache::default();
        let given = FastOpenAnswer {
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
