from rankdeck.api.racing import Raced as Raced
from rankdeck.api.racing import race as race
from rankdeck.api.run_object import Run as Run
from rankdeck.api.starting import open_run as open_run
from rankdeck.api.starting import run as run
from rankdeck.api.starting import train as train
from rankdeck.observer.log import log as log

__version__: str
