-module(echo).
-export([main/1]).

%% An echo server. One Erlang process accepts connections; each connection has a process that
%% echoes.
main(Port) ->
    Options = [binary, {active, false}, {reuseaddr, true}, {ip, {0, 0, 0, 0}}],
    {ok, Listener} = gen_tcp:listen(Port, Options),
    accept(Listener).

accept(Listener) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            Pid = spawn(fun() -> receive go -> echo(Socket) end end),
            ok = gen_tcp:controlling_process(Socket, Pid),
            Pid ! go,
            accept(Listener);
        {error, Reason} ->
            io:format("accept: ~p~n", [Reason]),
            halt(1)
    end.

echo(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Bytes} ->
            ok = gen_tcp:send(Socket, Bytes),
            echo(Socket);
        {error, closed} ->
            gen_tcp:close(Socket);
        {error, Reason} ->
            io:format("recv: ~p~n", [Reason]),
            gen_tcp:close(Socket)
    end.
